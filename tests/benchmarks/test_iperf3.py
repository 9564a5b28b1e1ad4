import pytest

from clusterbench.benchmarks.iperf3 import Iperf3
from clusterbench.cluster import Cluster
from clusterbench.errors import ToolError
from clusterbench.types import Place
from tests.benchmarks.fake_programs import processes_of, program, run_suite
from tests.tools import printed

FAKE = f"""
words = sys.argv[1:]
if "-s" in words:
    server = socket.create_server(("127.0.0.1", int(words[words.index("-p") + 1])))
    time.sleep(600)
print('''{printed.IPERF3}''')
"""


@pytest.mark.gloo
def test_a_server_that_never_ends_by_itself_is_ended(tmp_path):
    program(tmp_path / "bin", "iperf3", FAKE)
    done, outcomes, rows = run_suite(tmp_path, "  - {benchmark: iperf3, seconds: 2, iterations: 2}")
    assert done.returncode == 0, done.stderr
    case = "iperf3/1n2/1streams-2s-0to1"
    assert outcomes[case].status == "ok"
    assert rows[case, "bandwidth", ""] == 1e9
    assert rows[case, "retransmits", ""] == 7
    assert rows[case, "round_trip", ""] == pytest.approx(450e-6)
    assert processes_of(tmp_path) == []


def test_fewer_streams_or_seconds_than_asked_for_are_refused():
    with pytest.raises(ToolError) as caught:
        Iperf3.parse(printed.IPERF3, {"streams": 4, "seconds": 2})
    assert str(caught.value) == "iperf3 was asked for 4 streams of 2 s and reports 1 of 2 s"
    with pytest.raises(ToolError, match="asked for 1 streams of 5 s and reports 1 of 2 s"):
        Iperf3.parse(printed.IPERF3, {"streams": 1, "seconds": 5})


def test_it_must_end_before_it_is_ended():
    benchmark, place = Iperf3(seconds=60, tool_time_limit_s=30.0), Place(Cluster(1, 2, "cpu"), 1)
    (point,) = benchmark.points(place)
    assert benchmark.objection(point, place) == "iperf3 sends for 60 s and would be ended after 30 s"
