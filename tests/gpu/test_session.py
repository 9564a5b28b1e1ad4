"""The clock of the half hour, and what becomes of a block that hangs, crashes, finds no time or leaves half a file."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterbench.cluster import Cluster
from clusterbench.planning import make_plan
from clusterbench.suite import load_suite
from tests.gpu import AS_PREDICTED, FAILED, ROOT, Row, __main__, machine, predictions
from tests.gpu.blocks import all_blocks
from tests.gpu.predictions import Prediction, judged
from tests.gpu.session import Ending, Part, Session, Setting, environment_for, run_process, table

GOOD = Row("good", "1", "1", AS_PREDICTED)


@dataclass
class Machine:
    """A clock, and processes that take as long as they say."""

    now_s: float = 0.0
    limits_s: dict[str, float] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now_s

    def run(self, command: Sequence[str], log: Path, environment: Mapping[str, str], limit_s: float) -> Ending:
        """``command`` is the name, the seconds that it wants, and its exit status."""
        name, wants_s, code = command[0], float(command[1]), int(command[2])
        self.limits_s[name] = limit_s
        log.write_text(f"{name} was here\n")
        self.now_s += min(wants_s, limit_s)
        if wants_s > limit_s:
            return Ending("hung", -9, limit_s, f"{name} was here")
        return Ending("ended", code, wants_s, f"{name} was here")


def part(name: str, wants_s: float = 10.0, code: int = 0, most_s: float = 100.0, **more: Any) -> Part:
    more = {"rows": lambda setting, ending: [GOOD], **more}
    return Part(name, lambda setting: [name, str(wants_s), str(code)], most_s=most_s, **more)


def session(folder: Path, budget_s: float, *parts: Part) -> tuple[Session, Machine]:
    there = Machine()
    ran = Session(folder, "cpu", budget_s, run_process=there.run, now_s=there.clock)
    ran.run({each.name: [each] for each in parts})
    return ran, there


def faults(ran: Session) -> list[tuple[str, str, str]]:
    return [(row.name, row.value, row.note) for row in ran.rows if row.verdict == FAILED]


def test_a_block_gets_what_it_asks_for_or_what_is_left(tmp_path: Path) -> None:
    ran, there = session(tmp_path, 120, part("a", 90), part("b", 10))
    assert there.limits_s == {"a": 100, "b": 30}
    assert (faults(ran), ran.exit_code) == ([], 0)


def test_a_block_that_hangs_is_a_row_and_the_rest_runs(tmp_path: Path) -> None:
    ran, _ = session(tmp_path, 200, part("a", 1e9), part("b"))
    assert faults(ran) == [("a", "stopped after 100 s", "a was here")]
    assert ran.results["parts"]["b"]["how"] == "ended"
    assert ran.exit_code == 1


def test_a_block_that_crashes_is_a_row_and_what_it_left_is_read(tmp_path: Path) -> None:
    ran, _ = session(tmp_path, 200, part("a", code=-11), part("b"))
    assert faults(ran) == [("a", "ended with -11", "a was here")]
    assert [row.name for row in ran.rows] == ["a", "good", "good"]


def test_blocks_without_time_are_rows(tmp_path: Path) -> None:
    ran, there = session(tmp_path, 115, part("a", 100), part("b"), part("c"))
    assert there.limits_s.keys() == {"a"}
    assert faults(ran) == [("b", "no time left", ""), ("c", "no time left", "")]


def test_behind_a_gate_that_is_shut_nothing_is_started(tmp_path: Path) -> None:
    there = Machine()
    ran = Session(tmp_path, "cpu", 200, run_process=there.run, now_s=there.clock)
    ran.run({"ranks": [part("probe", 1e9, is_gate=True), part("ranks")], "next": [part("next")]})
    assert there.limits_s.keys() == {"probe", "next"}
    assert faults(ran)[1] == ("ranks", "not started", "probe did not pass")


def test_blocks_beside_one_another_come_first_and_under_one_clock(tmp_path: Path) -> None:
    there, met = Machine(), threading.Barrier(2, timeout=30)

    def run(command: Sequence[str], *arguments: Any) -> Ending:
        if command[0] in ("a", "c"):
            met.wait()  # neither ends before the other has begun
        return there.run(command, *arguments)

    ran = Session(tmp_path, "cuda", 200, run_process=run, now_s=there.clock)
    ran.run({name: [part(name)] for name in "abcd"}, beside=("a", "c"))
    assert list(there.limits_s)[2:] == ["b", "d"]
    assert {name: left["how"] for name, left in ran.results["parts"].items()} == dict.fromkeys("acbd", "ended")
    assert json.loads((tmp_path / "results.json").read_text())["parts"].keys() == set("abcd")


def test_what_goes_wrong_in_a_block_beside_others_is_raised_when_these_are_done(tmp_path: Path) -> None:
    there = Machine()

    def run(command: Sequence[str], *arguments: Any) -> Ending:
        if command[0] == "a":
            raise OSError("no space left")
        return there.run(command, *arguments)

    ran = Session(tmp_path, "cuda", 200, run_process=run, now_s=there.clock)
    with pytest.raises(OSError, match="no space left"):
        ran.run({name: [part(name)] for name in "ab"}, beside=("a", "b"))
    assert ran.results["parts"]["b"]["how"] == "ended"


def test_results_that_are_cut_off_cost_their_own_block_alone(tmp_path: Path) -> None:
    def half_a_file(setting: Setting, ending: Ending) -> list[Row]:
        return [Row(**json.loads('{"name": "a", "val'))]

    ran, _ = session(tmp_path, 200, part("a", rows=half_a_file), part("b"))
    ((name, value, note),) = faults(ran)
    assert (name, value) == ("a", "results cannot be read")
    assert note.startswith("JSONDecodeError")
    assert ran.rows[-1] == GOOD


def test_a_session_that_is_killed_leaves_what_it_had_and_what_was_under_way(tmp_path: Path) -> None:
    there = Machine()

    def killed(*arguments: Any) -> Ending:
        if arguments[0][0] == "b":
            raise KeyboardInterrupt
        return there.run(*arguments)

    ran = Session(tmp_path, "cpu", 200, run_process=killed, now_s=there.clock)
    with pytest.raises(KeyboardInterrupt):
        ran.run({"a": [part("a")], "b": [part("b")]})
    left = json.loads((tmp_path / "results.json").read_text())
    assert {name: record["how"] for name, record in left["parts"].items()} == {"a": "ended", "b": "running"}
    assert "good" in (tmp_path / "table.txt").read_text()


def test_a_session_in_the_same_folder_goes_on_with_it(tmp_path: Path) -> None:
    session(tmp_path, 200, part("a"), part("b", code=3))
    again, _ = session(tmp_path, 200, part("b"))
    assert [row.name for row in again.rows] == ["good", "good"]
    assert {path.name for path in tmp_path.glob("*.log")} == {"a.log", "b.log", "b-2.log"}


@pytest.mark.parametrize(
    ("program", "limit_s", "how", "code"),
    [
        ("print('a word')", 30, "ended", 0),
        ("import time; print('a word', flush=True); time.sleep(60)", 1, "hung", -15),
        ("import os; print('a word', flush=True); os.abort()", 30, "ended", -6),
    ],
)
def test_processes_end_at_their_limit(tmp_path: Path, program: str, limit_s: float, how: str, code: int) -> None:
    command = [sys.executable, "-c", program]
    ending = run_process(command, tmp_path / "log", environment_for(), limit_s)
    assert (ending.how, ending.code, ending.last_words) == (how, code, "a word")
    assert ending.seconds < 20


def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    program = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).wait())"
    ending = run_process([sys.executable, "-c", program], tmp_path / "log", environment_for(), 6)
    assert ending.how == "hung"
    child_pid, given_up_at = int(ending.last_words), time.monotonic() + 10
    while not _has_ended(child_pid):  # what was killed may have to wait for a core to end on
        assert time.monotonic() < given_up_at
        time.sleep(0.02)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_users_variables_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    made = environment_for({"NCCL_MAX_CTAS": "2", "NCCL_IB_DISABLE": "1"})
    assert (made["NCCL_MAX_CTAS"], made["NCCL_IB_DISABLE"]) == ("8", "1")
    assert made["PYTHONPATH"] == f"{ROOT}:/elsewhere"


# What is missing


def test_everything_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version", lambda name: {"click": "8.1.7", "torch": "2.13.0+cpu"}.get(name, ""))
    asked = ["torch>=2.11", "click>=8.2", "nowhere-to-find>=1.0", "nor-this>=2", "nvidia-ml-py>=12.560"]
    assert machine.missing_modules(asked) == [
        "click>=8.2: 8.1.7 is older",
        "module nowhere-to-find (nowhere-to-find>=1.0)",
        "module nor-this (nor-this>=2)",
    ]


def test_it_needs_what_the_package_needs_and_pytest() -> None:
    names = {requirement.partition(">=")[0] for requirement in machine.requirements()}
    assert {"torch", "click", "nvidia-ml-py", "PyYAML", "pytest"} <= names
    assert not names & {"pytest-xdist", "pytest-timeout", "hypothesis", "playwright", "ruff"}
    assert machine.missing_modules(machine.requirements()) == []


def test_a_torch_without_gpu_or_that_cannot_be_used_is_missing() -> None:
    seen = {"torch": "2.13.0+cpu", "gpu": None}
    assert __main__.unusable(seen, "cuda") == ["a GPU: torch 2.13.0+cpu sees none (--device cpu rehearses without)"]
    assert __main__.unusable(seen, "cpu") == []
    broken = {"error": "ImportError: libcudart.so.13: cannot open shared object file"}
    assert __main__.unusable(broken, "cpu") == [f"a torch that can be used: {broken['error']}"]


def test_names_that_this_torch_lacks_are_said_and_stop_nothing() -> None:
    seen = {"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "nccl": "2.28.9", "gpu": "NVIDIA H200"}
    assert __main__.about({**seen, "vanished": ["torch._C.x"]}) == [
        "# Python 3.12.3, torch 2.11.0, CUDA 13.0, NCCL 2.28.9, NVIDIA H200",
        "# this torch has no torch._C.x: what needs it may fail, or say less",
    ]


def test_a_block_that_there_is_not_is_a_mistake_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        __main__.main(["smok"])
    assert ended.value.code == 2
    assert "there is no block 'smok'; there are smoke, tests, ladder" in capsys.readouterr().err


def test_the_named_blocks_are_those_that_there_are() -> None:
    assert tuple(all_blocks("cuda")) == __main__.BLOCKS


# The table


def test_the_table_has_a_line_a_figure_and_says_below_why_one_is_not_as_predicted() -> None:
    rate = Prediction(6000, 6800, "tokens/s", "by arithmetic")
    rows = [
        judged("a", 6500, "tokens/s", rate),
        judged("b", 5000, "tokens/s", rate),
        judged("c", 7e3, "tokens/s", rate),
        judged("d", 7e3, "tokens/s"),
        Row("e", "timeout", "ok", FAILED, "rank 0 hung"),
    ]
    assert table(rows) == "\n".join(
        [
            "# name  value           predicted                         verdict",
            "  a     6,500 tokens/s  6,000 tokens/s to 6,800 tokens/s  as predicted",
            "  b     5,000 tokens/s  6,000 tokens/s to 6,800 tokens/s  below",
            "  c     7,000 tokens/s  6,000 tokens/s to 6,800 tokens/s  above",
            "  d     7,000 tokens/s  -                                 no prediction",
            "  e     timeout         ok                                failed",
            "# b: by arithmetic",
            "# c: by arithmetic",
            "# e: rank 0 hung",
        ]
    )


# Predictions

LADDER = {**predictions.STEP, "micro_batch_size": 1, "recompute": "full", "compile": False}


def test_the_ladders_speeds_are_of_its_own_step_on_an_h200_alone() -> None:
    assert predictions.tokens_per_s("NVIDIA H200", LADDER) is not None
    assert predictions.tokens_per_s("NVIDIA H100 80GB HBM3", LADDER) is None
    assert predictions.tokens_per_s("", LADDER) is None, "CPU ranks"
    for other in ({"seq_len": 8192}, {"micro_batch_size": 2}, {"shape": "llama-1b"}, {"attention_backend": "cudnn"}):
        assert predictions.tokens_per_s("NVIDIA H200", {**LADDER, **other}) is None


def test_mfu_follows_from_tokens_by_the_projects_own_formula() -> None:
    found = predictions.mfu("NVIDIA H200", LADDER, "palm_6n")
    assert found is not None
    assert (round(found.low, 3), round(found.high, 3)) == (0.353, 0.403)


def test_a_rung_fits_does_not_or_is_too_near_to_tell() -> None:
    def outcome(card_bytes: float | None, **options: Any) -> str:
        return predictions.outcome_of_rung("NVIDIA H200", {**LADDER, **options}, card_bytes)

    card = 150.75e9
    assert outcome(card, compile=True, precision="pure_bfloat16", micro_batch_size=2) == "ok"
    assert outcome(card) == outcome(card, compile=True, recompute="selective", loss_chunks=8) == "out_of_memory"
    assert outcome(card, compile=True, attention_backend="cudnn") == "", "152.0 GB, of which layers may keep less"
    assert outcome(153e9) == "", "152.0 GB, and a context of 0.4 to 1.6 GB"
    assert outcome(card, recompute="none") == outcome(card, recompute="none", compile=True) == "out_of_memory"
    assert outcome(card, seq_len=8192) == outcome(None) == "", "another step, and a card of unknown size"


def test_what_rungs_hold_is_what_the_plan_says_of_them() -> None:
    cases = make_plan(load_suite(ROOT / "suites" / "one_gpu.yaml"), Cluster(1, 1, "cuda", "NVIDIA H200")).cases
    planned = {
        predictions.rung_of(case.point): case.expected["peak_memory[category=total]"].value
        for case in cases
        if "peak_memory[category=total]" in case.expected
    }
    assert len(planned) == 3
    for rung, held in planned.items():
        assert predictions.HELD_BYTES[rung] == pytest.approx(held, rel=1e-3)


def test_every_rung_of_the_suite_has_its_prediction() -> None:
    cases = make_plan(load_suite(ROOT / "suites" / "one_gpu.yaml"), Cluster(1, 1, "cuda", "NVIDIA H200")).cases
    steps = [case.point for case in cases if case.benchmark == "train_step"]
    assert len({predictions.rung_of(point) for point in steps}) == len(steps)
    assert [predictions.words_of(p) for p in steps if predictions.tokens_per_s("NVIDIA H200", p) is None] == []
