import pytest

from clusterbench.benchmarks.fio import Fio
from clusterbench.cluster import Cluster
from clusterbench.errors import ToolError
from clusterbench.types import Place
from tests.benchmarks.fake_programs import program, run_suite
from tests.tools import printed

NODES = Place(Cluster(2, 8, "cuda"), 2)

FAKE = f"""
if "--rw=randread" in sys.argv:
    print("fio: pid=0, err=28/file:filesetup.c:240, func=write, error=No space left on device", file=sys.stderr)
    sys.exit(1)
print("fio: a note that is no JSON")
print('''{printed.FIO}''')
"""


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_folder_is_measured_and_a_full_one_is_told(tmp_path):
    program(tmp_path / "bin", "fio", FAKE)
    done, outcomes, rows = run_suite(tmp_path, "  - {benchmark: fio, test: [read, randread, write]}")
    assert done.returncode == 1
    read, full, nothing = (f"fio/1n2/{test}-tmp-1MiB-1x1-psync-on0" for test in ("read", "randread", "write"))
    assert [outcomes[case].status for case in (read, full, nothing)] == ["ok", "failed", "failed"]
    assert rows[read, "bandwidth", ""] == 1048576000
    assert rows[read, "latency_p99", ""] == pytest.approx(1531.904e-6)
    assert "error=No space left on device" in outcomes[full].reason
    assert "fio moved nothing by write" in outcomes[nothing].reason


def point(**options):
    benchmark = Fio.from_options(options)
    return benchmark, next(iter(benchmark.points(NODES)))


def test_ending_it_ends_its_jobs_and_its_files_go(monkeypatch):
    arguments = []
    monkeypatch.setattr(Fio, "alone", classmethod(lambda cls, rig, point, words: arguments.extend(words)))
    Fio.prepare(None, point(test="randwrite", jobs=4, direct=True, directory="/scratch")[1])
    assert {"--rw=randwrite", "--directory=/scratch", "--numjobs=4", "--direct=1", "--bs=1048576"} <= {*arguments}
    assert {"--thread", "--unlink=1", "--group_reporting", "--time_based", "--end_fsync=1"} <= {*arguments}


def test_requests_of_another_size_than_asked_for_are_refused():
    with pytest.raises(ToolError) as caught:
        Fio.parse(printed.FIO, {"test": "randread", "block_bytes": 4096})
    assert str(caught.value) == (
        "fio printed 1.049e+09 B/s, but 1000 requests of 4096 bytes a second are 4.096e+06 B/s"
    )


def test_what_cannot_take_effect_is_refused():
    def objection(**options):
        benchmark, fio_point = point(**options)
        return benchmark.objection(fio_point, NODES)

    assert objection() is None
    assert objection(depth=8) == (
        "engine psync has one request under way in a job: write 'libaio' or 'io_uring', or more jobs"
    )
    assert objection(block_size=2**20, file_size=4096) == "a block of 1MiB does not fit into a file of 4KiB"
    assert objection(seconds=60) == "fio runs for 60 s and would be ended after 60 s"


def test_each_node_is_a_case_of_its_own():
    assert [point["runner"] for point in Fio().points(NODES)] == [0, 8]


def test_a_request_has_its_median_its_tail_and_its_mean():
    figures = Fio.parse(printed.FIO, {"test": "read", "block_bytes": 2**20})
    assert figures == pytest.approx(
        {
            "bandwidth": 1048576000,
            "request_rate": 1000,
            "latency": 950.272e-6,
            "latency_p99": 1531.904e-6,
            "latency_mean": 990e-6,
        }
    )
