import pytest

from clusterbench.benchmarks.nccl_tests import NcclTests
from clusterbench.cluster import Cluster
from clusterbench.errors import ToolError, WrongResult
from clusterbench.types import Place
from tests.benchmarks.fake_programs import program, run_suite
from tests.tools import printed

NODES = Place(Cluster(2, 8, "cuda"), 2)

FAKE = f"""
words = sys.argv[1:]
text = '''{printed.NCCL_TESTS}'''
if words[words.index("-n") + 1] == "21":
    text = text.replace("44.48       0", "44.48      37").replace("values : 0 OK", "values : 1 FAILED")
print(text)
"""
LAUNCHER = """
print("started by the launcher", file=sys.stderr, flush=True)
assert sys.argv[1:3] == ["-n", "16"]
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_wrong_result_is_a_wrong_row_and_a_launcher_starts_the_program(tmp_path):
    program(tmp_path / "bin", "all_reduce_perf", FAKE)
    program(tmp_path / "bin", "fakerun", LAUNCHER)
    sizes = f"min_size: 1MiB, max_size: 1MiB, path: {tmp_path}/bin"
    entries = f"""
  - {{benchmark: nccl_tests, {sizes}}}
  - {{benchmark: nccl_tests, {sizes}, num_gpus: 3, calls: 21}}
  - {{benchmark: nccl_tests, {sizes}, launcher: fakerun -n 16}}
  - {{benchmark: nccl_tests, {sizes}, num_gpus: 5, launcher: nowhererun -n 16}}
"""
    done, outcomes, rows = run_suite(tmp_path, entries)
    assert done.returncode == 1
    good, wrong = (f"nccl_tests/1n2/all_reduce-1MiB-{gpus}gpus-on0" for gpus in (2, 3))
    launched, missing = (f"nccl_tests/1n2/all_reduce-1MiB-{gpus}gpus-launched" for gpus in (1, 5))
    assert [outcomes[case].status for case in (good, wrong, launched, missing)] == ["ok", "wrong", "ok", "skipped"]
    assert rows[good, "busbw", "out_of_place"] == 44.48e9
    assert rows[good, "busbw", "in_place"] == 45.03e9
    assert rows[launched, "latency", "in_place"] == pytest.approx(40.75e-6)
    assert "all_reduce_perf gave wrong results: 37 wrong elements, 1 checks failed" in outcomes[wrong].reason
    assert "nowhererun is not on PATH" in outcomes[missing].reason


def point(**options):
    return next(iter(NcclTests.from_options({"min_size": 2**20, "max_size": 2**20, **options}).points(NODES)))


def test_one_process_has_the_gpus_of_a_node_and_under_a_launcher_one():
    assert [
        (node_point["runner"], node_point["num_gpus"]) for node_point in NcclTests(max_size=1024).points(NODES)
    ] == [(0, 8), (8, 8)]
    launched = NcclTests(max_size=1024, launcher="mpirun -n 16").points(NODES)
    assert [(node_point["runner"], node_point["num_gpus"]) for node_point in launched] == [(0, 1)]


def test_one_size_a_process_and_every_result_checked(monkeypatch):
    arguments = []
    monkeypatch.setattr(NcclTests, "alone", classmethod(lambda cls, rig, point, words: arguments.extend(words)))
    all_gather = point(test="all_gather", path="/opt/nccl-tests/build")
    NcclTests.prepare(None, all_gather)
    assert NcclTests.program_of(all_gather) == "/opt/nccl-tests/build/all_gather_perf"
    assert " ".join(arguments) == "-b 1048576 -e 1048576 -g 8 -n 20 -w 5 -c 1"


def test_a_size_rounded_down_to_the_ranks_is_taken_and_another_is_not():
    text = printed.NCCL_TESTS.replace("1048576        262144", "1048512        262128")
    assert NcclTests.parse(text, point())["algbw[part=out_of_place]"] == 25.42e9
    for size_bytes in (2**19, 2**22):
        with pytest.raises(ToolError) as caught:
            NcclTests.parse(printed.NCCL_TESTS, {**point(), "size_bytes": size_bytes})
        assert str(caught.value) == f"all_reduce_perf was asked for {size_bytes} bytes and measured 1048576"


@pytest.mark.parametrize(("launcher", "factor"), [("", 2 * 7 / 8), ("mpirun -n 4", 2 * 3 / 4)])
def test_bandwidths_below_what_two_decimals_tell_are_size_over_time(launcher, factor):
    row = "        4096          1024     float     sum      -1" + "   268.12    0.02    0.03       0" * 2
    lines = [row if line.startswith("     1048576") else line for line in printed.NCCL_TESTS.splitlines()]
    ranks = [f"#  Rank  {rank} Group  0 Pid      1 on    somehost device  0 [0000:01:00] Some GPU" for rank in range(4)]
    text = "\n".join(line for line in lines if "Rank  0" not in line).replace("# Using devices", "\n".join(ranks))
    figures = NcclTests.parse(text + "\n", {**point(launcher=launcher), "size_bytes": 4096})
    assert figures["algbw[part=in_place]"] == pytest.approx(4096 / 268.12e-6)
    assert figures["busbw[part=in_place]"] == pytest.approx(4096 / 268.12e-6 * factor)


def test_many_single_jobs_instead_of_one_are_refused():
    rows = "".join(line for line in printed.NCCL_TESTS.splitlines(keepends=True) if line.startswith("     1048576"))
    with pytest.raises(ToolError, match="all_reduce_perf was asked for one size and printed 2 rows"):
        NcclTests.parse(printed.NCCL_TESTS.replace(rows, rows * 2), point())


def test_an_array_too_small_for_the_ranks_has_no_speed():
    row = "           0             0     float     sum      -1" + "    41.25    0.00    0.00       0" * 2
    text = "\n".join(row if line.startswith("     1048576") else line for line in printed.NCCL_TESTS.split("\n"))
    with pytest.raises(ToolError, match="made no whole element a rank of 1048576 bytes: ask for larger arrays"):
        NcclTests.parse(text, point())


def test_a_wrong_element_is_a_wrong_result_whatever_the_verdict():
    with pytest.raises(WrongResult) as caught:
        NcclTests.parse(printed.NCCL_TESTS.replace("44.48       0", "44.48       2"), point())
    assert caught.value.evidence == {"wrong_elements": 2.0, "failed_checks": 0.0}


@pytest.mark.parametrize(
    ("old", "new", "evidence"),
    [
        ("45.03       0", "45.03       3", {"wrong_elements": 3.0, "failed_checks": 0.0}),
        ("values : 0 OK", "values : 2 FAILED", {"wrong_elements": 0.0, "failed_checks": 2.0}),
    ],
)
def test_in_place_too_and_by_its_own_verdict_a_wrong_result_has_no_speed(old, new, evidence):
    with pytest.raises(WrongResult) as caught:
        NcclTests.parse(printed.NCCL_TESTS.replace(old, new), point())
    assert caught.value.evidence == evidence


def test_each_placement_has_its_time_and_both_bandwidths():
    assert NcclTests.parse(printed.NCCL_TESTS, point()) == pytest.approx(
        {
            "latency[part=out_of_place]": 41.25e-6,
            "algbw[part=out_of_place]": 25.42e9,
            "busbw[part=out_of_place]": 44.48e9,
            "latency[part=in_place]": 40.75e-6,
            "algbw[part=in_place]": 25.73e9,
            "busbw[part=in_place]": 45.03e9,
        }
    )
