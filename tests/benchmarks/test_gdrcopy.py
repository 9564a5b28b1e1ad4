import re

import pytest

from clusterbench.benchmarks.gdrcopy import Gdrcopy
from clusterbench.cluster import Cluster
from clusterbench.errors import ToolError
from clusterbench.types import Place
from tests.benchmarks.fake_programs import processes_of, program, run_suite
from tests.tools import printed

NODES = Place(Cluster(2, 8, "cuda"), 2)

COPYBW = f"""
words = sys.argv[1:]
if words[words.index("-d") + 1] == "7":
    sys.exit("gdr_open error: No such file or directory")
if words[words.index("-d") + 1] == "5":
    print("selecting device 5", flush=True)
    time.sleep(600)
if words[words.index("-d") + 1] == "6":
    words[words.index("-s") + 1] = "8192"
print('''{printed.COPYBW}'''.replace("65536", words[words.index("-s") + 1]))
"""

COPYLAT = """
def table(function, time_us):
    print("Test \\t\\t\\t Size(B) \\t Avg.Time(us)")
    for power in range(17):
        print(f"{function} \\t {2**power:8d} \\t {time_us * 2**power:11.4f}")

table("gdr_copy_to_mapping", 0.1)
table("gdr_copy_from_mapping", 0.9)
"""


@pytest.mark.in_turn
@pytest.mark.gloo
def test_what_is_measured_missing_hanging_and_lying(tmp_path):
    program(tmp_path / "bin", "gdrcopy_copybw", COPYBW)
    program(tmp_path / "bin", "gdrcopy_copylat", COPYLAT)
    entries = """
  - {benchmark: gdrcopy, gpu_index: [0, 7], min_size: 4KiB, max_size: 64KiB}
  - {benchmark: gdrcopy, gpu_index: [5, 6], min_size: 4KiB, max_size: 4KiB, tool_time_limit_s: 6}
  - {benchmark: gdrcopy, test: [copylat, pplat], max_size: 64KiB}
"""
    done, outcomes, rows = run_suite(tmp_path, entries, only_fakes=True)
    assert done.returncode == 1
    assert processes_of(tmp_path) == []
    status = {case.removeprefix("gdrcopy/1n2/"): outcome.status for case, outcome in outcomes.items()}
    assert status == {
        "copybw-4KiB-gpu0-on0": "ok",
        "copybw-64KiB-gpu0-on0": "ok",
        "copybw-4KiB-gpu7-on0": "skipped",
        "copybw-64KiB-gpu7-on0": "skipped",
        "copybw-4KiB-gpu5-on0": "failed",
        "copybw-4KiB-gpu6-on0": "failed",
        "copylat-64KiB-gpu0-on0": "ok",
        "pplat-gpu0-on0": "skipped",
    }
    assert rows["gdrcopy/1n2/copybw-4KiB-gpu0-on0", "write_bandwidth", ""] == 9765.5 * 2**20
    assert rows["gdrcopy/1n2/copylat-64KiB-gpu0-on0", "read_latency", "2B"] == pytest.approx(1.8e-6)
    assert "gdrcopy's module gdrdrv is not loaded" in outcomes["gdrcopy/1n2/copybw-4KiB-gpu7-on0"].reason
    assert "has not ended after 6 s. It printed at the end:\n    selecting device 5\n" in (
        outcomes["gdrcopy/1n2/copybw-4KiB-gpu5-on0"].reason
    )
    assert "gdrcopy_copybw was asked for 4096 bytes and measured 8192" in (
        outcomes["gdrcopy/1n2/copybw-4KiB-gpu6-on0"].reason
    )
    assert "gdrcopy_pplat is not on PATH" in outcomes["gdrcopy/1n2/pplat-gpu0-on0"].reason


def words(monkeypatch, **options):
    arguments = []
    monkeypatch.setattr(Gdrcopy, "alone", classmethod(lambda cls, rig, point, words: arguments.extend(words)))
    point = next(iter(Gdrcopy.from_options(options).points(NODES)))
    Gdrcopy.prepare(None, point)
    return f"{Gdrcopy.program_of(point)} {' '.join(arguments)}"


def test_each_program_gets_the_words_it_knows(monkeypatch):
    assert words(monkeypatch) == "gdrcopy_copybw -d 0 -w 1000 -r 100 -s 4096"
    assert words(monkeypatch, test="copylat", gpu_index=1) == "gdrcopy_copylat -d 1 -w 1000 -r 100 -s 16777216"
    assert words(monkeypatch, test="pplat") == "gdrcopy_pplat -d 0"


def test_another_size_than_asked_for_is_refused():
    with pytest.raises(ToolError, match="gdrcopy_copybw was asked for 4096 bytes and measured 65536"):
        Gdrcopy.parse(printed.COPYBW, {"test": "copybw", "size_bytes": 4096})
    with pytest.raises(ToolError, match="gdrcopy_copylat was asked for 65536 bytes and measured 4"):
        Gdrcopy.parse(printed.COPYLAT, {"test": "copylat", "size_bytes": 65536})


def test_the_round_trip_of_a_flag():
    assert Gdrcopy.parse(printed.PPLAT, {"test": "pplat"}) == {"round_trip": 1.25e-6}


def test_writes_and_reads_of_each_size_have_a_latency():
    text = re.sub(r"(?m)^(gdr_copy_\w+ +)([124]) ", lambda row: f"{row[1]}{2**14 * int(row[2])} ", printed.COPYLAT)
    figures = Gdrcopy.parse(text, {"test": "copylat", "size_bytes": 2**16})
    assert figures == pytest.approx(
        {
            "write_latency[part=16KiB]": 88.9e-9,
            "write_latency[part=32KiB]": 88.4e-9,
            "write_latency[part=64KiB]": 89.1e-9,
            "read_latency[part=16KiB]": 910e-9,
            "read_latency[part=32KiB]": 1710e-9,
            "read_latency[part=64KiB]": 1720e-9,
        }
    )
