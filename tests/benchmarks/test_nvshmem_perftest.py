import pytest

from clusterbench.benchmarks.nvshmem_perftest import NvshmemPerftest
from clusterbench.errors import ToolError
from tests.benchmarks.fake_programs import program, run_suite
from tests.tools import printed

LAUNCHER = "assert sys.argv[1:3] == ['-n', '2']\nos.execv(sys.argv[3], sys.argv[3:])\n"
PUT = f"""
assert os.environ["NVSHMEM_MACHINE_READABLE_OUTPUT"] == "1"
assert os.environ["NVSHMEM_IB_ENABLE_IBGDA"] in "01"
print('''{printed.NVSHMEM}''')
"""


@pytest.mark.in_turn
@pytest.mark.gloo
def test_its_launcher_starts_it_and_a_suite_sweeps_its_variables(tmp_path):
    program(tmp_path / "bin", "nvshmrun", LAUNCHER)
    program(tmp_path / "perftest", "shmem_put_latency", PUT)
    entries = f"""
  - benchmark: nvshmem_perftest
    test: put_latency
    path: {tmp_path}/perftest
    min_size: 1KiB
    max_size: 1KiB
    environment: {{NVSHMEM_IB_ENABLE_IBGDA: [0, 1]}}
"""
    done, outcomes, rows = run_suite(tmp_path, entries)
    assert done.returncode == 0, done.stderr
    assert sorted(outcomes) == [
        f"nvshmem_perftest/1n2/put_latency-1KiB-NVSHMEM_IB_ENABLE_IBGDA={value}" for value in (0, 1)
    ]
    for case in outcomes:
        assert rows[case, "latency", "thread"] == pytest.approx(4.25e-6)
        assert rows[case, "latency", "warp"] == pytest.approx(3.5e-6)


def test_another_size_or_another_figure_than_asked_for_is_refused():
    point = {"test": "put_latency", "size_bytes": 2048}
    with pytest.raises(ToolError, match="shmem_put_latency was asked for 2048 bytes and measured 1024"):
        NvshmemPerftest.parse(printed.NVSHMEM, point)
    with pytest.raises(ToolError, match="shmem_put_bw printed no bandwidth, but latency"):
        NvshmemPerftest.parse(printed.NVSHMEM, {"test": "put_bw", "size_bytes": 1024})


def test_the_program_is_looked_up_in_its_folder():
    point = {"test": "get_bw", "path": "/opt/nvshmem/bin/perftest/device/pt-to-pt"}
    assert NvshmemPerftest.program_of(point) == "/opt/nvshmem/bin/perftest/device/pt-to-pt/shmem_get_bw"


def test_each_figure_is_of_who_issues_the_message():
    assert NvshmemPerftest.parse(printed.NVSHMEM, {"test": "put_latency", "size_bytes": 1024}) == pytest.approx(
        {"latency[part=thread]": 4.25e-6, "latency[part=warp]": 3.5e-6, "latency[part=block]": 3.75e-6}
    )
