import pytest

from clusterbench.benchmarks.ucx_perftest import UcxPerftest
from clusterbench.cluster import Cluster
from clusterbench.errors import ToolError
from clusterbench.types import Place
from tests.benchmarks.fake_programs import program, run_suite
from tests.tools import printed

POINT = {"test": "tag_bw", "size_bytes": 2**20, "messages": 1000}

USAGE = f"""
words = sys.argv[1:]
if "-t" not in words:
    server = socket.create_server(("127.0.0.1", int(words[words.index("-p") + 1])))
    time.sleep(600)
if words[words.index("-t") + 1] == "tag_lat":
    print("   NOTE: When running UCP tests, transport and device should be specified by")
    sys.exit(129)
print('''{printed.UCX}''')
"""


@pytest.mark.gloo
def test_a_usage_instead_of_a_table_is_a_test_that_is_not_built_in(tmp_path):
    program(tmp_path / "bin", "ucx_perftest", USAGE)
    done, outcomes, rows = run_suite(tmp_path, "  - {benchmark: ucx_perftest, min_size: 1MiB, test: [tag_bw, tag_lat]}")
    assert done.returncode == 0, done.stderr
    good, absent = (f"ucx_perftest/1n2/{test}-1MiB-0to1" for test in ("tag_bw", "tag_lat"))
    assert (outcomes[good].status, outcomes[absent].status) == ("ok", "skipped")
    assert rows[good, "bandwidth", ""] == 9258.44 * 2**20
    assert "ucx_perftest was built without this test or this memory on " in outcomes[absent].reason


def test_memory_of_a_gpu_is_asked_for_on_both_sides_and_needs_one(monkeypatch):
    arguments = []
    monkeypatch.setattr(UcxPerftest, "between", classmethod(lambda cls, rig, point, *words: arguments.extend(words)))
    benchmark, place = UcxPerftest(memory="cuda"), Place(Cluster(2, 8, "cuda"), 2)
    point = next(iter(benchmark.points(place)))
    UcxPerftest.prepare(None, point)
    server, client = arguments
    assert server == ["-p", "{port}"]
    assert " ".join(client) == "{host} -p {port} -t tag_bw -s 8 -n 1000 -w 100 -f -m cuda,cuda"
    assert benchmark.label(point) == "tag_bw-8B-0to8-cuda"
    assert benchmark.objection(point, place) is None
    assert benchmark.objection(point, Place(Cluster(1, 2, "cpu"), 1)) == (
        "memory cuda is a GPU's, and there are none here"
    )


def test_a_bandwidth_is_the_one_printed_and_a_small_one_that_of_its_messages():
    assert UcxPerftest.parse(printed.UCX, POINT) == {"bandwidth": 9258.44 * 2**20, "message_rate": 1 / 108.010e-6}
    small = printed.UCX.replace("9258.44", "   0.07")
    assert UcxPerftest.parse(small, {**POINT, "size_bytes": 8})["bandwidth"] == 8 / 108.010e-6


def test_a_latency_is_the_median():
    assert UcxPerftest.parse(printed.UCX, {**POINT, "test": "tag_lat"})["latency"] == pytest.approx(107.25e-6)


def test_messages_of_another_size_or_number_than_asked_for_are_refused():
    with pytest.raises(ToolError) as caught:
        UcxPerftest.parse(printed.UCX, {**POINT, "size_bytes": 4096})
    assert str(caught.value) == (
        "ucx_perftest printed 9.708e+09 B/s, but 9258 messages of 4096 bytes a second are 3.792e+07 B/s"
    )
    with pytest.raises(ToolError, match="ucx_perftest was asked for 500 messages and sent 1000"):
        UcxPerftest.parse(printed.UCX, {**POINT, "messages": 500})
