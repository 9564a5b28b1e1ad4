"""What the blocks make of what is on disk, on invented runs of an H200."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterbench.cluster import Cluster
from clusterbench.job.flops import CAUSAL_ATTENTION, PRODUCTS
from clusterbench.job.passes import Executed, Moved
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import Case, Observation, Timing, WarmUp, split_key
from tests.gpu import ABOVE, AS_PREDICTED, BELOW, DIFFERS, FAILED, ROOT, SHOWN, Row
from tests.gpu.blocks import all_blocks, files_with_gpu_tests
from tests.gpu.nccl_probe import STEPS
from tests.gpu.session import Ending, Part, Setting
from tests.report.synthetic import outcome

H200 = "NVIDIA H200"
CARD = {"gpu": H200, "memory_bytes": 160e9}
"""A little larger than an H200: with float32 weights full recomputation finds room, and no other."""
ENDED = Ending("ended", 0)
TOKENS = 8 * 4096

Seen = Callable[[Case], tuple[str, Observation | None]]


def planned(folder: Path, suite: str, seen: Seen, ranks: int = 1) -> Path:
    """A run of a shipped suite, in which each case ended as ``seen`` says."""
    cluster = Cluster(1, ranks, "cuda", H200, hosts=("a",), ranks_per_gpu=ranks)
    plan = make_plan(load_suite(ROOT / "suites" / f"{suite}.yaml"), cluster)
    run = RunFolder.create(folder, b"suite: s\n", plan, {})
    for case in plan.cases:
        status, observation = seen(case)
        run.record(outcome(case, status, reason="" if status == "ok" else "planted"), observation)
    (folder / "index.html").touch()
    return folder


def observed(case: Case, seconds: float, **more: object) -> Observation:
    record = Observation(case.id, case.hash, 0, 1, ("a",), [[seconds] * case.iterations] * case.world_size)
    return replace(record, **more)


def of_step(case: Case, tokens_per_s: float, norm: float = 1.5) -> Observation:
    """A step of the ladder; what it holds is what the plan expects, and the allocator has 1 % more."""
    held = {
        category: int(case.expected[f"peak_memory[category={category}]"].value)
        for category in ("parameters", "gradients", "optimizer_state", "activations", "total")
        if f"peak_memory[category={category}]" in case.expected
    }
    total = held.get("total", 120e9)
    executed = [
        Executed("aten::mm", key.removeprefix("executed_flops[part=").rstrip("]"), "forward", 1, int(value.value))
        for key, value in case.expected.items()
        if key.startswith("executed_flops")
    ]
    driver = {"index": 0, "name": H200, "mean_power_w": 690.0, "max_memory_used_bytes": 1.03 * total + 0.8e9}
    return observed(
        case,
        TOKENS / tokens_per_s,
        evidence=(
            {
                "first_loss": 11.8,
                "first_norm": norm,
                "loss": 11.0,
                "norm": norm,
                "num_updates": 6.0,
                **({"compiled_frames": 2.0} if case.point.get("compile") else {}),
            },
        ),
        passes={
            "memory": [{**held, "total": int(total), "allocated": int(1.01 * total), "reserved": int(1.03 * total)}],
            "executed": [[vars(each) for each in executed]],
        },
        telemetry={"a": {"GPU-1": driver}},
    )


def rows_of(block: str, folder: Path, name: str | None = None, gpu: str = H200) -> dict[str, Row]:
    """By name without the block's."""
    parts: list[Part] = all_blocks("cuda")[block]
    (part,) = (part for part in parts if part.name == (name or block))
    rows = part.rows(Setting("cuda", folder, 100, CARD | {"gpu": gpu}), ENDED)
    return {row.name.removeprefix(folder.name).strip(", "): row for row in rows}


FULL, COMPILED, CUDNN, NONE = "full", "full compiled", "full compiled cudnn", "none"
ANCHOR = "full compiled 2 sequences pure_bfloat16"


def ladder(case: Case) -> tuple[str, Observation | None]:
    """All in bfloat16 runs; with float32 weights full recomputation of all logits, as fast as predicted or compiled and
    slower, and the others find no room."""
    if case.benchmark == "matmul":
        return "ok", observed(case, 2 * 8192**3 / 700e12)
    if "precision" in case.point:
        return "ok", of_step(case, 10_471 if case.point["recompute"] == "full" else 12_500)
    if case.point["recompute"] != "full" or "loss_chunks" in case.point:
        return "out_of_memory", None
    return "ok", of_step(case, 7000 if case.point["compile"] else 6500)


def test_each_rung_stands_beside_its_prediction(tmp_path: Path) -> None:
    rows = rows_of("ladder", planned(tmp_path / "ladder", "one_gpu", ladder))
    assert (rows["as expected"].value, rows["as expected"].verdict) == ("17 of 17 cases", AS_PREDICTED)
    rate = rows[f"{FULL} tokens_per_s"]
    assert (rate.value, rate.predicted) == ("6,500 tokens/s", "6,400 tokens/s to 7,300 tokens/s")
    assert rate.verdict == AS_PREDICTED
    assert rows[f"{COMPILED} tokens_per_s"].verdict == BELOW
    assert rows[f"{ANCHOR} tokens_per_s"].predicted == "9,950 tokens/s to 11,000 tokens/s"
    assert rows[f"{ANCHOR} mfu palm_6n"].value == "57.8 %"
    assert (rows[f"{FULL} mfu palm_6n"].value, rows[f"{FULL} mfu palm_6n"].verdict) == ("35.9 %", AS_PREDICTED)
    assert rows[f"{FULL} executed"].verdict == AS_PREDICTED
    assert rows[f"{FULL} executed"].value == "390.4 TFLOP/s"
    assert (rows[f"{FULL} allocated/formula"].value, rows[f"{FULL} allocated/formula"].verdict) == (
        "1.01",
        AS_PREDICTED,
    )
    assert (rows[f"{FULL} driver-reserved"].value, rows[f"{FULL} driver-reserved"].verdict) == (
        "762.94MiB",
        AS_PREDICTED,
    )
    assert rows[f"{COMPILED} compiled_frames"].predicted == "at least 1"
    assert rows[f"{NONE}"].value == "out_of_memory"
    assert rows[f"{NONE}"].verdict == AS_PREDICTED, "172.9 GB of 160 GB"
    assert rows["losses and norms apart"].value == "0"


def test_a_rung_that_was_predicted_to_fit_and_does_not_is_told(tmp_path: Path) -> None:
    def nothing_fits(case: Case) -> tuple[str, Observation | None]:
        return ladder(case) if case.benchmark == "matmul" else ("out_of_memory", None)

    rows = rows_of("ladder", planned(tmp_path / "ladder", "one_gpu", nothing_fits))
    assert (rows[FULL].value, rows[FULL].predicted, rows[FULL].verdict) == ("out_of_memory", "ok", DIFFERS)


def with_norms(folder: Path, *norms: float) -> dict[str, Row]:
    """The rungs that find room, with these norms of gradients."""
    left = list(norms)

    def seen(case: Case) -> tuple[str, Observation | None]:
        status, observation = ladder(case)
        if "precision" in case.point:
            return status, observation
        return status, of_step(case, 7000, left.pop(0)) if observation and case.benchmark != "matmul" else observation

    return rows_of("ladder", planned(folder, "one_gpu", seen))


def test_a_rung_whose_norm_is_another_than_that_of_most_is_wrong(tmp_path: Path) -> None:
    rows = with_norms(tmp_path / "ladder", 1.5, 1.5, 2.5)
    (cudnn,) = (row for row in rows.values() if row.value == "wrong")
    assert "attention_backend=cudnn" in cudnn.name
    assert cudnn.verdict == FAILED
    assert cudnn.note.startswith("the gradient norm of the first step is 2.5, and 1.5")


def test_rungs_that_all_differ_are_disputed(tmp_path: Path) -> None:
    rows = with_norms(tmp_path / "ladder", 1.5, 2.0, 2.5)
    assert [row.verdict for row in rows.values() if row.value == "disputed"] == [FAILED] * 3


def test_a_case_that_fails_or_was_not_run_is_named_with_its_reason(tmp_path: Path) -> None:
    def some_fail(case: Case) -> tuple[str, Observation | None]:
        return ("failed", None) if case.benchmark == "host_copy" else ("ok", observed(case, 1e-3))

    folder = planned(tmp_path / "smoke", "one_gpu_smoke", some_fail)
    lines = (folder / "outcomes.jsonl").read_text().splitlines()
    (folder / "outcomes.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])  # killed while it wrote
    rows = rows_of("smoke", folder)
    assert (rows["as expected"].value, rows["as expected"].verdict) == ("49 of 55 cases", FAILED)
    assert rows["host_copy/1n1/both-pinned-16MiB-all"].note == "planted"
    assert [row.value for row in rows.values() if row.value in ("not_run", "left out")] == ["not_run", "left out"]


def test_a_run_that_ended_without_its_page_is_no_success(tmp_path: Path) -> None:
    """Its exit status is that of failed cases: a traceback behind the last of them went unseen in a rehearsal."""
    folder = planned(tmp_path / "smoke", "one_gpu_smoke", lambda case: ("ok", observed(case, 1e-3)))
    assert "its page" not in rows_of("smoke", folder)
    (folder / "index.html").unlink()
    assert rows_of("smoke", folder)["its page"].verdict == FAILED


def test_on_a_gpu_a_skipped_case_is_a_branch_that_was_not_tried(tmp_path: Path) -> None:
    folder = planned(tmp_path / "smoke", "one_gpu_smoke", lambda case: ("skipped", None))
    assert rows_of("smoke", folder)["as expected"].verdict == FAILED


def test_a_card_without_float8_skips_it_and_nothing_else(tmp_path: Path) -> None:
    def seen(case: Case) -> tuple[str, Observation | None]:
        wants = "float8" in (case.point.get("dtype"), *case.point)  # an option that is at its default is in no point
        return ("skipped", None) if wants else ("ok", observed(case, 1e-3))

    folder = planned(tmp_path / "smoke", "one_gpu_smoke", seen)
    verdicts = {
        gpu: rows_of("smoke", folder, gpu=gpu)["as expected"].verdict for gpu in (H200, "NVIDIA A100-SXM4-80GB")
    }
    assert verdicts == {H200: FAILED, "NVIDIA A100-SXM4-80GB": AS_PREDICTED}


def test_all_cases_of_the_ranks_fit_one_card_with_four(tmp_path: Path) -> None:
    folder = planned(tmp_path / "ranks", "one_gpu_ranks", lambda case: ("ok", observed(case, 1e-3)), ranks=4)
    rows = rows_of("ranks", folder)
    assert [row.verdict for row in rows.values()] == [AS_PREDICTED]
    assert rows["as expected"].value == "33 of 33 cases"


def test_a_burst_and_what_is_sustained_have_predictions_of_their_own(tmp_path: Path) -> None:
    def seen(case: Case) -> tuple[str, Observation | None]:
        work = 2 * 8192**3 if case.benchmark == "matmul" else 2 * 4 * 2**30
        sustained, first = (600e12, 788e12) if case.benchmark == "matmul" else (4.3e12, 4.6e12)
        settled = Timing(0.0, 2.0, WarmUp(True, 0.001, 1.1, 1, [work / first] * 20))
        return "ok", observed(case, work / sustained, timing=[settled])

    rows = rows_of("ceilings", planned(tmp_path / "ceilings", "one_gpu_ceilings", seen))
    verdicts = {name: row.verdict for name, row in rows.items() if "8192-bf" in name or "copy-4GiB" in name}
    assert verdicts == {
        "matmul/1n1/8192-bfloat16 flops_per_s_per_rank": BELOW,
        "matmul/1n1/8192-bfloat16 burst_flops_per_s_per_rank": AS_PREDICTED,
        "device_copy/1n1/copy-4GiB bandwidth_per_rank": AS_PREDICTED,
        "device_copy/1n1/copy-4GiB burst_bandwidth_per_rank": ABOVE,
    }
    assert {row.verdict for name, row in rows.items() if "/fill" in name} == {SHOWN}


def lone_rank(case: Case, seconds: float, share: float = 1.0) -> Observation:
    """A rank that executes this share of what its formula has, and that otherwise is as the plan expects it."""
    flops = case.expected["executed_flops_per_rank[source=nothing sent]"].value
    counts = {key: value.value for key, value in case.expected.items() if key.startswith("collectives")}
    return observed(
        case,
        seconds,
        evidence=({"compiled_frames": 2.0},) if case.point["compile"] else ({},),
        passes={
            "executed": [
                [
                    vars(Executed("aten::mm", kind, "forward", 1, int(part * share * flops)))
                    for kind, part in ((PRODUCTS, 0.5), (CAUSAL_ATTENTION, 0.5))
                ]
            ],
            "traffic": [
                [vars(Moved(split_key(key)[1]["axis"], "send", int(count), 8, 8.0)) for key, count in counts.items()]
            ],
            "memory": [{"total": 10**9}],
            "own_seconds": [[0.5 * seconds, 0.5 * seconds]],
        },
    )


def test_a_lone_rank_has_no_rate_and_stands_beside_what_nothing_can_beat(tmp_path: Path) -> None:
    def seen(case: Case) -> tuple[str, Observation | None]:
        if case.point["layout"] == "pp4":
            return "ok", lone_rank(case, 0.01, share=0.9)  # planted: faster than the card, and not all is executed
        return "ok", lone_rank(case, 1.5 if case.point["compile"] else 1.0)

    rows = rows_of("fake", planned(tmp_path / "fake", "one_gpu_fake", seen))
    assert (rows["as expected"].value, rows["as expected"].verdict) == ("6 of 6 cases", AS_PREDICTED)
    time = rows["tp8+sp rank_time"]
    assert (time.value, time.predicted, time.verdict) == ("1.000 s", "at least 40.803 ms", AS_PREDICTED)
    assert (rows["tp8+sp computing"].value, rows["tp8+sp computing"].verdict) == ("50.0 %", SHOWN)
    counted = rows["tp8+sp collectives tp/formula"]
    assert (counted.predicted, counted.verdict) == ("1", AS_PREDICTED)
    assert rows["tp8+sp compiled compiled_frames"].verdict == AS_PREDICTED
    assert (rows["tp8+sp compiled/eager"].value, rows["tp8+sp compiled/eager"].verdict) == ("1.5", ABOVE)
    assert rows["pp4 rank_time"].verdict == BELOW
    assert rows["pp4 executed_flops_per_rank/formula"].verdict == BELOW
    assert not [name for name in rows if "tokens" in name or "mfu" in name]


def test_a_lone_rank_that_finds_no_room_differs(tmp_path: Path) -> None:
    rows = rows_of("fake", planned(tmp_path / "fake", "one_gpu_fake", lambda case: ("out_of_memory", None)))
    assert (rows["cp8+zero3 compiled"].predicted, rows["cp8+zero3 compiled"].verdict) == ("ok", DIFFERS)


def test_without_a_run_there_is_no_guess(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder"):
        rows_of("smoke", tmp_path / "smoke")


# Blocks that are no suites


def log(folder: Path, text: str) -> Path:
    folder.with_suffix(".log").write_text(text)
    return folder


def test_tests_are_read_from_their_output_up_to_where_it_was_cut(tmp_path: Path) -> None:
    said = """
tests/engine/test_loop.py::test_marks PASSED                              [ 50%]
tests/benchmarks/test_matmul.py::test_rate[tf32 on a GPU] FAILED          [ 75%]
tests/benchmarks/test_matmul.py::test_other"""
    rows = rows_of("tests", log(tmp_path / "tests", said))
    assert [(name, row.value, row.verdict) for name, row in rows.items()] == [
        ("passed", "1 of 2", FAILED),
        ("/benchmarks/test_matmul.py::test_rate[tf32 on a GPU]", "failed", FAILED),
    ]
    assert rows_of("tests", log(tmp_path / "tests", ""))["passed"].verdict == FAILED, "none were found"


def test_a_probe_that_stops_says_where(tmp_path: Path) -> None:
    steps = [f"rank {rank}: {step} ok" for step in STEPS for rank in (0, 1)]
    (row,) = rows_of("ranks", log(tmp_path / "ranks_probe", "\n".join(steps)), "ranks_probe").values()
    assert (row.value, row.verdict) == ("6 of 6", AS_PREDICTED)
    (row,) = rows_of("ranks", log(tmp_path / "ranks_probe", "\n".join(steps[:3])), "ranks_probe").values()
    assert (row.value, row.verdict) == ("1 of 6", FAILED)
    assert row.note.startswith("not through 'all_reduce'")


BARE = """
import sys
sys.modules.update(dict.fromkeys(["xdist", "pytest_timeout", "hypothesis", "playwright", "msgspec", "ruff", "mypy"]))
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_the_tests_of_a_gpu_need_no_plugin_of_pytest(tmp_path: Path) -> None:
    command = all_blocks("cpu")["tests"][0].command(Setting("cpu", tmp_path / "tests", 100))
    assert len(files_with_gpu_tests()) >= 8
    found = subprocess.run(
        [sys.executable, "-c", BARE, "--collect-only", *command[3:]],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:]
    collected = re.search(r"(\d+)/\d+ tests collected", found.stdout)
    assert collected
    assert int(collected[1]) >= 14
