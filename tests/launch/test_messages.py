"""Lines between the processes of a run: what is written is read again, and nothing else is."""

import json
import math
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbench.engine.telemetry import GpuSample
from clusterbench.launch import lines, messages
from clusterbench.launch.lines import (
    BadLine,
    decode_event,
    decode_order,
    decode_samples,
    decode_spawn,
    decode_worker_order,
    decode_zygote_event,
    decode_zygote_order,
    encode,
)
from clusterbench.launch.messages import (
    AddressTried,
    AskRas,
    CheckMpi,
    ChildExited,
    CountersGrown,
    Disabled,
    End,
    Ended,
    EndMpi,
    ExpectSilence,
    Forked,
    ForkStore,
    ForkWorkers,
    Goodbye,
    GoOn,
    GpuSamples,
    GpusSampled,
    Hello,
    ImportFailed,
    Inspect,
    Inspected,
    InspectMpi,
    Interrupted,
    Leave,
    LostStore,
    LostZygote,
    MpiEnded,
    OpenStore,
    Own,
    PackageCopy,
    PrepareMpi,
    Quit,
    RankDone,
    RankExited,
    RankFailed,
    RankPlace,
    RankReached,
    RankReady,
    RasTold,
    RunCase,
    SampleGpus,
    Sign,
    Spawn,
    Start,
    StoreOpen,
    StorePlace,
    TellTime,
    TimeMpi,
    TimeTold,
    TryAddress,
    Warm,
    WorkerPlace,
    ZygoteBegun,
    ZygoteReady,
)
from clusterbench.tools.nccl_ras import Lag, Process, Stall
from clusterbench.types import HostCounters

COPY = PackageCopy("/x/clusterbench", "0123456789abcdef")
START = Start(3, 2, "cpu", {"A": "b"}, StorePlace(host="10.0.0.1", port=29500, prefix="ab"), 60.0, "/logs", 8)
CASE = RunCase("all_reduce", {"size_bytes": 8, "cut": [1]}, "tp2", "megatron", 10, 1, True, True, 4)
ORDERS = [
    *(Own((0, 1), {"GLOO_SOCKET_IFNAME": "eth0"}), Warm({}), OpenStore({}, "10.0.0.1"), START, CASE, GoOn("check")),
    *(
        Inspect(True),
        End(3, False),
        SampleGpus(0.5),
        TellTime(),
        AskRas("localhost:28028"),
        TryAddress("10.0.0.1", 29500),
        PrepareMpi((0, 2), (0, 0), {"op": "bcast"}, 5, 1, 9.5),
    ),
    *(CheckMpi(9.5), TimeMpi(9.5), InspectMpi(), EndMpi(), Sign(), ExpectSilence(20.0), Quit(1, "aborted")),
]
EVENTS = [
    *(Hello("a", None, COPY, {"gpus": []}), Sign(), TimeTold(1.5), Interrupted(), Goodbye(), StoreOpen(29500)),
    *(RankReady(1, "a", {"torch": "2.13"}), RankReached(1, "a", "checked")),
    RankDone(1, "a", [0.5, 0.25], {"deviation": 1e-7}, {"memory": {"peak": 7, "parts": [1, None, "x"]}}),
    RankFailed(1, "a", "wrong", "5 of 9 differ", "prepared", {"wrong_elements": 5.0}),
    *(
        RankExited(1, "a", -9, "/logs/x", 2**30),
        LostZygote("a", "gone"),
        LostStore("a", "gone"),
        Disabled("can start no worker"),
    ),
    Inspected((RankPlace(1, "a", "warm", 7, "S", ('File "x.py", line 3 in f',), "/logs/x"),)),
    AddressTried(29500, "No route to host"),
    *(Ended(3, {"start-0003-rank-0001.log": "said"}), MpiEnded("a", True)),
    RasTold("a", Stall("lagging", Lag(8, "AllReduce", 3, 4, 1, (Process(5, "10.0.0.1", 77, 5),)))),
    CountersGrown("a", HostCounters(2.5, {"port": 8}, {"mlx5_0 port 1": {"link_downed": 1}})),
    GpusSampled("a", GpuSamples(1.5, (GpuSample(0, throttle_reasons=["sw_thermal"]), GpuSample(1, error="lost")))),
]
LOCAL = {
    decode_spawn: [Spawn("clusterbench.launch.zygote", ("1",), {"A": "b"}, (7, 8))],
    decode_zygote_order: [
        ForkStore("10.0.0.1", (7,)),
        ForkWorkers(START, "a", {}, (WorkerPlace(8, 0, 0, "/logs/x", "/own/x"),), (7, 8)),
    ],
    decode_zygote_event: [
        ZygoteBegun(98),
        ZygoteReady(1, COPY),
        ImportFailed("no"),
        Forked(3, 8, 99),
        ChildExited(None, None, -9),
    ],
    decode_worker_order: [CASE, GoOn("time"), Leave()],
}
ALL = [
    *((decode_order, order) for order in ORDERS),
    *((decode_event, event) for event in EVENTS),
    *((decode, message) for decode, some in LOCAL.items() for message in some),
]


@pytest.mark.parametrize(("decode", "message"), ALL, ids=lambda value: type(value).__name__)
def test_what_is_written_is_read_again(decode, message):
    assert decode(encode(message)) == message


def test_every_message_is_among_these():
    kinds = {type(message) for _, message in ALL}
    assert kinds == set(get_args(messages.Message))
    assert set(get_args(messages.Order)) == {type(order) for order in ORDERS}
    assert set(get_args(messages.MemberEvent)) == {type(event) for event in EVENTS}


def reason(decode, line):
    with pytest.raises(BadLine) as caught:
        decode(line if isinstance(line, bytes) else json.dumps(line).encode())
    return str(caught.value)


def test_an_order_is_no_event_and_an_event_no_order():
    assert reason(decode_event, encode(Quit(0, "in order"))) == "'Quit' is no message that belongs here"
    assert reason(decode_order, encode(Goodbye())) == "'Goodbye' is no message that belongs here"


REACHED = {"message": "RankReached", "rank": 1, "host": "a", "stage": "checked"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({**REACHED, "message": "Reached"}, "'Reached' is no message that belongs here"),
        ({**REACHED, "message": ["RankReached"]}, "['RankReached'] is no message that belongs here"),
        ({"rank": 1}, "None is no message that belongs here"),
        ([], "the line is no JSON object"),
        ({**REACHED, "slot": 1}, "in RankReached 'slot' is not known here."),
        ({**REACHED, "rank": "1"}, "in RankReached 'rank' is \"1\", not a whole number"),
        ({**REACHED, "rank": True}, "in RankReached 'rank' is true, not a whole number"),
        ({**REACHED, "rank": 1.0}, "in RankReached 'rank' is 1.0, not a whole number"),
        ({**REACHED, "rank": 10**19}, "in RankReached 'rank' is 10000000000000000000, not a whole number"),
        ({**REACHED, "rank": None}, "in RankReached 'rank' is null, not a whole number"),
        ({**REACHED, "host": 1}, "in RankReached 'host' is 1, not text"),
        ({**REACHED, "stage": "done"}, "in RankReached 'stage' is \"done\", not one of prepared, checked"),
        ({"message": "RankReached", "rank": 1, "host": "a"}, "in RankReached 'stage' is missing"),
        ({"message": "TimeTold", "time_s": math.nan}, "in TimeTold 'time_s' is NaN, not a number"),
        ({"message": "TimeTold", "time_s": math.inf}, "in TimeTold 'time_s' is Infinity, not a number"),
        (b'{"message": "TimeTold", "time_s": 1e999}', "in TimeTold 'time_s' is Infinity, not a number"),
        (
            b'{"message": "TimeTold", "time_s": 1' + b"0" * 400 + b"}",
            "the line cannot be read: a whole number of 401 digits",
        ),
        ({"message": "Ended", "start": 1, "logs": {"x": 1}}, "in Ended 'logs' is {\"x\": 1}, not text"),
        ({"message": "Ended", "start": 1, "logs": ["x"]}, "in Ended 'logs' is [\"x\"], not names and values"),
        (
            {"message": "Inspected", "ranks": [{"rank": 1}]},
            "in Inspected in 'ranks' 'host' is missing",
        ),
    ],
)
def test_what_is_not_exactly_a_message_is_refused_with_its_field(line, said):
    assert reason(decode_event, line).startswith(said)


@pytest.mark.parametrize("depth", [2_000, 100_000])
@pytest.mark.parametrize("begin", [b"", b'{"message": "RankDone", "rank": ', b'{"message": '])
def test_nesting_without_end_is_refused(begin, depth):
    assert reason(decode_event, begin + b"[" * depth + b"\n").startswith("the line cannot be read: ")


def test_half_a_character_is_refused_and_never_written():
    line = b'{"message": "LostZygote", "host": "a", "reason": "\\ud800"}'
    assert reason(decode_event, line).startswith("the line cannot be read: ")
    name = b"\xff".decode(errors="surrogateescape")  # as a file of another system may be called
    assert decode_event(encode(LostZygote("a", f"no file {name}"))) == LostZygote("a", "no file ?")


def test_a_phase_that_there_is_not_is_refused():
    place = {"rank": 1, "host": "a", "phase": "lunch", "iteration": 0, "state": "S", "stack": [], "log": ""}
    said = reason(decode_event, {"message": "Inspected", "ranks": [place]})
    assert said.startswith("in Inspected in 'ranks' 'lunch' is no phase; phases are spawned, imported, device")


def test_what_was_measured_may_be_no_number_as_in_the_files():
    done = decode_event(encode(RankDone(0, "a", [1.0], {"loss": math.inf}, {"samples": {"loss": [math.inf]}})))
    assert done.evidence == {"loss": math.inf}
    assert reason(decode_event, encode(RankDone(0, "a", [math.nan], {}, {}))).startswith("in RankDone 'seconds'")


@pytest.mark.parametrize("status", ["ok", "timeout", "refused"])
def test_a_rank_that_failed_cannot_say_that_its_case_went_well(status):
    line = {"message": "RankFailed", "rank": 0, "host": "a", "status": status, "reason": "", "phase": "warm"}
    assert reason(decode_event, line) == (
        f"in RankFailed 'status' is \"{status}\", not one of wrong, failed, out_of_memory, skipped"
    )


def test_a_message_that_no_reader_takes_is_not_sent(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 100)
    with pytest.raises(BadLine, match=r"^LostZygote has 157 bytes, and a message may have 100$"):
        encode(LostZygote("a", "x" * 104))


def test_a_sample_of_gpus_is_a_line_of_a_program_of_its_own():
    assert decode_samples(b'{"time_s": 1.5, "gpus": [], "reason": "no driver"}') == GpuSamples(1.5, (), "no driver")
    assert reason(decode_samples, b'{"time_s": 1.5, "gpus": [{}]}') == "in GpuSamples in 'gpus' 'index' is missing"


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(ALL), st.integers(0), st.binary(max_size=4), st.integers(0, 3))
def test_a_damaged_line_is_read_or_refused_and_never_an_error_of_another_kind(message, at, put, drop):
    decode, said = message
    line = encode(said)
    at %= len(line)
    try:
        read = decode(line[:at] + put + line[at + drop :])
    except BadLine:
        return
    assert type(read) in get_args(messages.Message)
