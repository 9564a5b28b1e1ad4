from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from clusterbench.benchmarks import benchmarks
from clusterbench.cli import main, options
from clusterbench.engine import telemetry
from clusterbench.errors import SuiteError

ROOT = Path(__file__).parent.parent
SUITES = sorted(path.stem for path in ROOT.glob("suites/*.yaml"))
SUITE = """\
suite: s
question: Which link is slow?
num_nodes: [1, 2]
benchmarks:
  - benchmark: all_reduce
    max_size: 32
cpu:
  num_ranks: 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command line beside ``s.yaml``, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SUITE)
    monkeypatch.setattr(telemetry, "list_gpus", telemetry.GpuList)

    def run(*arguments):
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    return run


def test_a_plan_goes_to_stdout_and_refusals_do_not_change_the_exit_code(run):
    done = run("plan", "s.yaml")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert done.stdout.startswith(
        "# s: Which link is slow?\n# 1 node x 3 CPU ranks: 2 cases, 1 repeat, 2 refused\n#\n# case "
    )
    assert "# refused: 'all_reduce' needs 2 nodes, but the allocation has 1.\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_a_plan_for_programs_is_one_object(run):
    plan = json.loads(run("plan", "s.yaml", "--json", "--num-ranks", "2").stdout)
    assert plan["suite"] == "s"
    assert plan["cluster"]["ranks_per_node"] == 2
    assert [case["id"] for case in plan["cases"]] == ["all_reduce/1n2/8B-float32", "all_reduce/1n2/32B-float32"]
    assert all(case["hash"] for case in plan["cases"])
    assert len(plan["refusals"]) == 2


def test_a_machine_elsewhere_can_be_planned_for(run):
    done = run("plan", "s.yaml", "--device", "cuda", "--num-nodes", "2", "--gpus-per-node", "8")
    assert "# 2 nodes x 8 GPUs: 4 cases, 1 repeat, 0 refused" in done.stdout


def test_ranks_that_share_a_gpu_can_be_planned_for(run):
    done = run("plan", "s.yaml", "--gpu", "NVIDIA H200", "--gpus-per-node", "1", "--ranks-per-gpu", "2")
    assert "# 1 node x 1 GPU with 2 ranks each (NVIDIA H200): 2 cases, 1 repeat, 2 refused" in done.stdout


def test_of_a_machine_elsewhere_there_are_as_many_nodes_as_the_suite_asks_for_at_least(run, tmp_path):
    large = tmp_path / "large.yaml"
    large.write_text("suite: large\nnum_nodes: [4, 64]\nbenchmarks: [{benchmark: all_reduce}]\n")
    for elsewhere in (("--gpu", "NVIDIA H200"), ("--gpus-per-node", "8")):
        assert "# 4 nodes x 8 GPUs" in run("plan", str(large), *elsewhere).stdout
        assert "# 2 nodes x 8 GPUs" in run("plan", "s.yaml", *elsewhere, "--num-nodes", "2").stdout


def test_gpus_that_are_here_are_the_default(run, monkeypatch):
    gpus = telemetry.GpuList([telemetry.GpuInfo(0, "NVIDIA H200", None, None, None, None)] * 4)
    monkeypatch.setattr(telemetry, "list_gpus", lambda: gpus)
    assert "# 1 node x 4 GPUs (NVIDIA H200): " in run("plan", "s.yaml").stdout
    assert "# 1 node x 3 CPU ranks: " in run("plan", "s.yaml", "--device", "cpu").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "s.yml"), "error: s.yml: there is no such file. Did you mean 's.yaml'?\n"),
        (
            ("plan", "s.yaml", "--device", "cuda"),
            "error: no GPU was found on this host.\nhint: 'clusterbench plan SUITE --gpus-per-node 8' plans for a "
            "machine elsewhere; --device cpu needs no GPU\n",
        ),
        (
            ("plan", "s.yaml", "--device", "cpu", "--gpus-per-node", "8"),
            "error: --gpus-per-node has no effect with --device cpu. Say --num-ranks.\n",
        ),
        (
            ("plan", "s.yaml", "--gpus-per-node", "8", "--num-ranks", "8"),
            "error: --num-ranks counts CPU ranks and has no effect on GPUs. Say --gpus-per-node or --device cpu.\n",
        ),
        (
            ("list", "benchmark"),
            "error: there are no 'benchmark' to list. Did you mean 'benchmarks'?\n"
            "Kinds: benchmarks, parallelisms, trainers, shapes, cards, suites, charts, diagnoses, profiles.\n",
        ),
        (
            ("list", "checks"),
            "error: there are no 'checks' to list.\n"
            "Kinds: benchmarks, parallelisms, trainers, shapes, cards, suites, charts, diagnoses, profiles.\n"
            "hint: 'clusterbench doctor --list' shows the checks\n",
        ),
        (
            ("list", "llama-8b"),
            "error: there are no 'llama-8b' to list.\n"
            "Kinds: benchmarks, parallelisms, trainers, shapes, cards, suites, charts, diagnoses, profiles.\n"
            "hint: 'clusterbench list shapes llama-8b' shows it\n",
        ),
        (("list", "suites", "t"), f"error: there is no 't' among the suites.\nSuites: {', '.join(SUITES)}.\n"),
    ],
)
def test_a_mistake_is_said_on_stderr_with_exit_code_2(run, tmp_path, arguments, said):
    (tmp_path / "suites").mkdir()
    done = run(*arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plan", "s.yaml", "--num-nodes", "0"),
        ("paln",),
        ("run", "s.yaml", "--spares", "1"),
        ("run", "s.yaml", "--launch", "mpirun -n 2 -host a,b", "--spares", "-1"),
        ("run", "s.yaml", "--launch", "mpirun -n 2 -host a,b", "--spares", "2"),
    ],
)
def test_usage_errors_end_with_2(run, arguments):
    assert run(*arguments).exit_code == 2


def test_a_bug_keeps_its_traceback(run, monkeypatch):
    monkeypatch.setattr("clusterbench.planning.verb.make_plan", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("plan", "s.yaml")


KINDS = ["benchmarks", "parallelisms", "trainers", "shapes", "cards", "suites", "charts", "diagnoses", "profiles"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_listed_a_line_each(run, kind):
    (header, *lines) = run("list", kind).stdout.splitlines()
    assert header.split()[:2] == ["#", kind]
    assert all(line.startswith("  ") and len(line) <= 120 for line in lines)
    assert kind == "suites" or lines


def test_everything_is_listed_when_nothing_is_asked(run):
    done = run("list")
    assert done.exit_code == 0
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("#")] == KINDS


def test_a_card_is_told_by_its_data_sheet(run):
    assert "  h200-sxm-141gb  141 GB, 989 TFLOP/s in bfloat16; 8 in a server" in run("list", "cards").stdout
    assert "  memory_bytes        80,000,000,000" in run("list", "cards", "h100-sxm-80gb").stdout


def test_the_options_of_a_benchmark_are_explained(run):
    lines = run("list", "benchmarks", "all_reduce").stdout.splitlines()
    assert "  max_size      size          64MiB    largest array, whole" in lines
    assert "# max_size: a size such as 64MiB, from 2B to 1TiB" in lines


def test_the_metrics_of_a_benchmark_are_explained(run):
    """docs/floors.md sends here for what can be asked of a figure."""
    lines = [" ".join(line.split()) for line in run("list", "benchmarks", "all_reduce").stdout.splitlines()]
    at = lines.index("# metric unit better what it is")
    assert "busbw B/s higher algbw x nccl-tests' factor, comparable with a link's rate one way" in lines[at:]
    for name, kind in benchmarks().items():
        said = run("list", "benchmarks", name).stdout
        assert [metric.name for metric in kind.metrics if metric.meaning not in said] == []


def test_every_thing_can_be_asked_about(run):
    for kind in ("benchmarks", "parallelisms", "trainers", "shapes", "charts", "diagnoses", "profiles"):
        for line in run("list", kind).stdout.splitlines()[1:]:
            assert run("list", kind, line.split()[0]).exit_code == 0


def test_a_suite_is_shown_as_it_is_written(run, tmp_path):
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "fabric.yaml").write_text(SUITE)
    lines = [line.split(maxsplit=1) for line in run("list", "suites").stdout.splitlines()[1:]]
    assert [name for name, _ in lines] == SUITES, "others come with it"
    assert ["fabric", "Which link is slow?"] in lines
    assert run("list", "suites", "fabric").stdout == SUITE


def test_the_suites_that_come_with_it_are_plans():
    for path in sorted((ROOT / "suites").glob("*.yaml")):
        num_nodes = "1" if path.stem == "top_configs" else "64"  # whose thousands of layouts take a minute on 64
        for machine in (["--device", "cpu"], ["--device", "cuda", "--gpus-per-node", "8", "--num-nodes", num_nodes]):
            done = CliRunner().invoke(main, ["plan", str(path), *machine], catch_exceptions=False)
            assert done.exit_code == 0, done.stderr


def test_a_reader_that_is_gone_is_no_traceback_and_no_fault():
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "clusterbench", "layout", "dp2"]
    done = subprocess.run(program, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, ""), "1 would say that something was found"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("30m", 1800),
        ("2d", 172_800),
        ("5:30", 330),
        ("1:30:00", 5400),
        ("1-00:00", 86_400),
        ("2-03:04:05", 183_845),
    ],
)
def test_a_time_is_read_as_batch_systems_write_it(text, seconds):
    # Slurm's own forms: minutes:seconds, hours:minutes:seconds, days-hours:minutes, days-hours:minutes:seconds.
    assert options.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "0", "0.5s", "1:2", "-3", "1:30:00:00", "h", "1:99:00", "5:60"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.BadParameter):
        options.seconds(text)


def test_hosts_are_named_as_schedulers_name_them():
    assert options.host_names("cb[2-3], a,cb2,") == ("cb2", "cb3", "a")
    assert options.host_names(None) is None


@pytest.mark.parametrize("text", ["", ",", "n[1-", "n[a-b]", "./absent"])
def test_what_names_no_host_is_refused(text):
    with pytest.raises((click.BadParameter, SuiteError)):
        options.host_names(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "s.yaml", "--num-ranks", "4k"), "'--num-ranks': must be a whole number from 1 to 4096, not '4k'"),
        (("plan", "s.yaml", "--num-ranks", "0"), "'--num-ranks': must be a whole number from 1 to 4096, not '0'"),
        (("run", "s.yaml", "--spares", "1.5"), "'--spares': must be a whole number of 0 or more, not '1.5'"),
        (("compare", "a", "b", "--threshold", "5%"), "'--threshold': must be a number from 0 to 1, not '5%'"),
        (("trend", "a", "--threshold", "nan"), "'--threshold': must be a number from 0 to 1, not 'nan'"),
        (("advise", "--shape", "x", "--gpu-hour", "$2"), "'--gpu-hour': must be a number above 0, not '$2'"),
    ],
)
def test_a_number_that_is_none_is_answered_with_what_is_allowed(run, words, said):
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


RECORDS = ["plan.jsonl", "observations.jsonl", "outcomes.jsonl", "environment.json", "suite.yaml", "traces.jsonl"]


@pytest.mark.parametrize(
    "words",
    [
        ("layout", "dp2", "--out"),  # as every verb that writes a file: the record was gone, and the run with it
        ("calibrate", "run", "--out"),
        ("trend", "run", "--json"),
        ("doctor", "--quick", "--json"),
    ],
)
def test_no_record_of_a_run_is_written_over(run, tmp_path, words):
    shutil.copytree(ROOT / "reports" / "examples" / "layouts_5d-cpu", tmp_path / "run")
    (tmp_path / "run" / "traces.jsonl").touch()
    before = {name: (tmp_path / "run" / name).read_bytes() for name in RECORDS}
    for name in RECORDS:
        done = run(*words, f"run/{name}")
        assert done.exit_code == 2
        said = f"error: {words[-1]} run/{name} is a record of the run in run, and cannot be made again; name another"
        assert said in " ".join(done.stderr.split())
    assert {name: (tmp_path / "run" / name).read_bytes() for name in RECORDS} == before


@pytest.mark.parametrize(
    "words",
    [
        "plan s.yaml",
        "layout tp2 --shape llama-tiny",
        "dry-run tp2 --shape llama-tiny",
        "advise --shape llama-8b --global-batch-size 16",
    ],
)
def test_a_card_has_the_same_names_in_every_verb(run, words):
    by_words, by_name = (run(*words.split(), "--gpu", gpu) for gpu in ("H100", "h100-sxm-80gb"))
    assert by_words.exit_code == by_name.exit_code == 0, by_words.stderr
    assert [line for line in by_words.stdout.splitlines() if "CPU seconds" not in line] == [
        line for line in by_name.stdout.splitlines() if "CPU seconds" not in line
    ]
    refused = run(*words.split(), "--gpu", "A100")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: --gpu 'A100' is not in the tables. Did you mean a100-sxm4-80gb, a100-sxm4")
