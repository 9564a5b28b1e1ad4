"""What NCCL's RAS says, in replies of the shape that its user guide documents."""

import json

import pytest

from clusterbench.errors import ToolError
from clusterbench.tools.nccl_ras import Process, communicators, stall


def reply(counts=(5, 5), missing=0, name="0xae94", operation="AllReduce", **more):
    """One communicator whose ranks have launched so many collectives of one kind."""
    ranks = [{**place(rank), "collective_counts": {"Broadcast": 0, operation: n}} for rank, n in enumerate(counts)]
    gone = [
        {**place(rank), "status": {"unresponsive": True, "considered_dead": False}}
        for rank in range(len(ranks), len(ranks) + missing)
    ]
    communicator = {
        "hash": name,
        "secondary_hash": "0xb7:0xb8",
        "size": len(ranks) + missing,
        "ranks_count": len(ranks),
        "missing_ranks_count": missing,
        "ranks": ranks,
        "missing_ranks": gone,
    }
    ras = {"collection_time_sec": 0.001, "timeouts_count": 0}
    return {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [communicator], "ras": ras, **more}


def place(rank):
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": rank,
        "host": "172.16.64.245",
        "pid": 100 + rank,
        "cuda_dev": rank,
        "nvml_dev": rank,
        "status": status,
    }


def read(said):
    return communicators(json.dumps(said).encode())


def held(first, second):
    return stall(read(reply(first)), read(reply(second)))


def test_a_communicator_is_read():
    (found,) = read(reply([7, 8], missing=1))
    first, second = found.counts
    assert (found.name, found.size) == ("0xae94/0xb7:0xb8", 3)
    assert first == Process(0, "172.16.64.245", 100, 0)
    assert found.counts[second] == {"Broadcast": 0, "AllReduce": 8}
    assert found.missing == (Process(2, "172.16.64.245", 102, 2),)


def test_the_lowest_count_is_named_also_where_most_ranks_lag():
    found = held([640, 640, 640, 641], [640, 640, 640, 641])
    assert found.state == "lagging"
    assert (found.lag.num_behind, found.lag.lowest, found.lag.highest) == (3, 640, 641)
    assert [process.rank for process in found.lag.behind] == [0, 1, 2]
    one = held([641, 640, 641], [641, 640, 641]).in_words(2.0)
    assert one == (
        "; NCCL says that rank 1 (GPU 1, process 101 on 172.16.64.245) of a communicator of 3 has launched 640 "
        "AllReduce, others 641"
    )


def test_many_that_lag_are_counted():
    words = held([0] * 20 + [1], [0] * 20 + [1]).in_words(2.0)
    assert " and 12 more of a communicator of 21 have launched 0 AllReduce, others 1" in words


def test_ranks_that_were_only_about_to_launch_do_not_lag():
    assert held([640, 641], [642, 642]).state == "moving"
    assert held([640, 641], [641, 642]).state == "moving"  # still apart, and both go on
    assert held([640, 640], [640, 641]).state == "moving"


def test_equal_counts_that_do_not_move_are_stuck():
    assert held([640, 640], [640, 640]).state == "stuck"


def test_ranks_that_do_not_answer_are_named():
    answer = read(reply([640], missing=2))
    found = stall(answer, answer)
    assert found.in_words(2.0) == (
        "; NCCL says that ranks 1 (GPU 1, process 101 on 172.16.64.245), 2 (GPU 2, process 102 on 172.16.64.245) of a "
        "communicator of 3 do not answer"
    )


def test_where_nothing_was_launched_nothing_is_said():
    assert held([0, 0], [0, 0]).state == "silent"
    assert stall([], []).in_words(2.0) == ""


def test_a_communicator_that_is_new_is_not_held_against_nothing():
    assert stall(read(reply([1, 2], name="0x1")), read(reply([1, 2], name="0x2"))).state == "moving"


def test_a_name_that_is_none_is_not_passed_on():
    said = reply()
    said["communicators"][0]["ranks"][0]["host"] = "a\x1b[31m<b>" + "x" * 500
    (process, _) = read(said)[0].counts
    assert process.host == "a??31m?b?" + "x" * 55


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"communicators": 3},
        {"communicators": [{}]},
        reply() | {"communicators": [{**reply()["communicators"][0], "size": "2"}]},
        reply(["5", 5]),
        reply([-1, 5]),
        reply([True, 5]),
    ],
)
def test_another_form_is_refused(said):
    with pytest.raises(ToolError, match=r"^NCCL's RAS gave no JSON of the documented form: "):
        read(said)


@pytest.mark.parametrize("said", [b"", b"{", b"\xff", b"[" * 100_000, b'{"communicators": [' + b"9" * 400 + b"]}"])
def test_what_is_no_json_is_refused(said):
    with pytest.raises(ToolError, match="no JSON of the documented form"):
        communicators(said)
