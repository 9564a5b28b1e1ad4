"""What is refused, how a process that dies is told, what waits for what, and the words for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.derive import read
from clusterbench.dry import objection, stage_ranks
from clusterbench.dry.advice import changes
from clusterbench.dry.processes import DryRunFailed, dry_ranks
from clusterbench.dry.text import dry_text
from clusterbench.dry.verb import AskedDryRun
from clusterbench.engine.compat import TorchDispatchMode, fake_tensors
from clusterbench.engine.fake_group import fake_group
from clusterbench.engine.launches import Launches
from clusterbench.engine.traffic import TrafficCounter
from clusterbench.job.dry import DryRank, Held, Sent
from clusterbench.job.flops import CAUSAL_ATTENTION, FORWARD, PRODUCTS
from clusterbench.job.passes import Executed
from clusterbench.parallel import active_in, expected_memory, from_options
from clusterbench.run_folder import RunFolder
from clusterbench.trainers.ours import Ours
from tests.ranks import run_ranks
from tests.training.jobs import make_job

RANK = DryRank(
    rank=3,
    memory={"total": 90_000_000_000, "parameters": 30_000_000_000, "activations": 70_000_000_000},
    peak_at="backward of layers.7",
    held=[
        Held("activations", "forward of layers.1", 60_000_000_000),
        Held("parameters", "", 30_000_000_000),
    ],
    sent=[Sent("tp", "all_reduce", 1_000_000_000, "bfloat16", 8, 4), Sent("dp", "all_gather", 10, "float32", 2, 1)],
    chain={"dp": 1, "tp": 3},
    executed=[],
    operators=1234,
    spent_s=1.0,
    process_bytes=360_000_000,
)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def words(memory_gb: float, layout: str = "dp2-tp2", **changes: Any) -> str:
    job = make_job(layout, shape="llama-8b", seq_len=4096, dtype="bfloat16", **changes)
    return dry_text([RANK], job, from_options({}), {3: "pp 0, dp 1"}, memory_gb)


def test_the_first_line_says_whether_it_fits() -> None:
    assert words(141).startswith("rank 3 (pp 0, dp 1) needs 90 GB of 141 GB: fits, 51.0 GB left.\n")
    assert words(96).startswith("rank 3 (pp 0, dp 1) needs 90 GB of 96 GB: close, measure it, 6.0 GB left.\n")
    assert words(80).startswith("rank 3 (pp 0, dp 1) needs 90 GB of 80 GB: does not fit, 10.0 GB too much.\n")
    above = "close, measure it: 6.0 GB above what is sold, and the driver shows at most 90.2 GB.\n"
    assert words(84).startswith(f"rank 3 (pp 0, dp 1) needs 90 GB of 84 GB: {above}")
    each = "24 GB: does not fit, 66.0 GB too much; 80 GB: does not fit, 10.0 GB too much; 141 GB: fits, 51.0 GB left; "
    assert words(0).startswith(f"rank 3 (pp 0, dp 1) needs 90 GB. {each}192 GB: fits, 102.0 GB left.\n")


def test_what_would_make_it_fit_follows_where_it_does_not() -> None:
    assert "By formula, to be dry-run, it fits with:\n" in words(80)
    assert "  +zero3: about " in words(80)
    assert "fits with" not in words(141)
    assert "No two changes make it fit, of" in words(4)


def test_two_changes_are_advised_where_no_one_is_enough() -> None:
    """Of 8B on 80 GB and of 70B on eight of them it was said that no change makes them fit, and no more."""
    job = make_job("tp1", shape="llama-8b", seq_len=4096, dtype="bfloat16", device="cuda")
    job = replace(job, micro_batch_size=1, global_batch_size=1)
    rank = replace(RANK, rank=0, memory={**RANK.memory, "total": 145_598_000_000})
    lines = dry_text([rank], job, from_options({}), {0: "any"}, 80).splitlines()
    assert lines[1:4] == [
        "No single change makes it fit. By formula, to be dry-run, it fits with:",
        "  recompute selective and precision pure_bfloat16: about 66.9 GB",
        "",
    ]
    large = make_job("dp8+zero3", shape="llama-70b", seq_len=4096, dtype="bfloat16", device="cuda")
    large = replace(large, micro_batch_size=1, global_batch_size=8)
    rank = replace(RANK, memory={**RANK.memory, "total": 223_793_000_000})
    said = dry_text([rank], large, from_options({}), {3: "any"}, 80)
    assert "  offload and recompute selective: about 70.2 GB\n" in said  # 69.7 by its dry run


def test_offload_is_advised_with_what_its_dry_run_needs() -> None:
    """117.5 GB: at the peak of its one micro-batch there are few gradients, whose shares were taken off as well."""
    job = make_job("dp8+zero3", shape="llama-70b", seq_len=4096, dtype="bfloat16", device="cuda")
    job = replace(job, micro_batch_size=1, global_batch_size=8)
    rank = replace(RANK, memory={**RANK.memory, "total": 223_793_000_000})
    assert "  offload: about 118.0 GB\n" in dry_text([rank], job, from_options({}), {3: "any"}, 180)


def test_what_is_sent_and_launched_is_summed_up() -> None:
    lines = words(0).splitlines()
    assert any(line.split() == ["tp", "all_reduce", "4", "4.000"] for line in lines)
    assert "longest chain of collectives that wait for one another: 4 (1 on dp + 3 on tp)" in lines
    assert any(line.endswith("1,234 operators launched a micro-batch") for line in lines)
    assert "dry-run in 1.0 CPU seconds and 360 MB" in lines


def test_flops_that_no_kernel_has_to_execute_are_told_with_those_that_are_counted() -> None:
    executed = [
        Executed("aten::mm", PRODUCTS, FORWARD, 7, 3 * 10**12),
        Executed("aten::_scaled_dot_product_flash_attention", CAUSAL_ATTENTION, FORWARD, 7, 10**12),
    ]
    job = make_job("tp1", shape="llama-8b", seq_len=4096, dtype="bfloat16")
    said = dry_text([replace(RANK, executed=executed)], job, from_options({}), {3: ""}, 141)
    assert "4.00 TFLOP of products and attention, 0.50 of it for scores that the causal mask hides; 1,234 " in said


def test_changes_are_only_those_that_are_possible() -> None:
    job = make_job("dp2-tp2", shape="llama-8b", seq_len=4096, dtype="bfloat16")
    found = [change for change, _, _ in changes(job, from_options({}))]
    recomputed = ["recompute selective", "recompute full"]
    of_precision = ["gradient_dtype bfloat16", "precision bfloat16_moments", "precision pure_bfloat16"]
    assert found == ["+sp", "+zero1", "+zero2", "+zero3", "micro_batch_size 1", *recomputed, *of_precision]
    alone = make_job("tp1", micro_batch_size=1)
    others = [change for change, _, _ in changes(alone, from_options({"recompute": "full"}))]
    assert others == ["recompute selective", "loss_chunks 8"]


def test_every_value_that_may_help_is_tried() -> None:
    """Half of a micro-batch, eight chunks and narrow moments alone were; it was said that no other would do."""
    job = make_job("tp1", shape="llama-8b", seq_len=4095, dtype="bfloat16", micro_batch_size=9, global_batch_size=9)
    job = replace(job, precision="bfloat16_moments", gradient_dtype="bfloat16")
    found = {change: changed for change, changed, _ in changes(job, from_options({}))}
    assert [name for name in found if "micro" in name or "chunks" in name] == [
        "micro_batch_size 3",
        "micro_batch_size 1",
        "loss_chunks 9",
        "loss_chunks 65",
        "loss_chunks 567",
    ]
    assert found["precision pure_bfloat16"].gradient_dtype == "float32"  # there it would change nothing


def test_states_in_bfloat16_are_advised_where_nothing_less_fits() -> None:
    """8B with 1,024 tokens on 80 GB was said to fit by no single change; dry-run it needs 64.3 GB."""
    job = make_job("tp1", shape="llama-8b", seq_len=1024, dtype="bfloat16", device="cuda")
    job = replace(job, micro_batch_size=1, global_batch_size=1)
    rank = replace(RANK, rank=0, memory={**RANK.memory, "total": 145_596_000_000})
    lines = dry_text([rank], job, from_options({}), {0: "any"}, 80).splitlines()
    assert lines[1:4] == ["By formula, to be dry-run, it fits with:", "  precision pure_bfloat16: about 64.2 GB", ""]


def test_what_fits_is_about_the_stages_that_were_run() -> None:
    """Stage 3 of 4, which needs 47.9 GB where stage 0 needs 60.0: it was said to need 31.5 when recomputed."""
    job = make_job("pp4-tp8+sp", shape="llama-70b", seq_len=4096, dtype="bfloat16", device="cuda")
    job = replace(job, micro_batch_size=1, global_batch_size=4)
    last = replace(RANK, rank=24, memory={**RANK.memory, "total": 47_916_000_000})
    said = dry_text([last], job, from_options({}), {24: "any"}, 50)
    assert "  recompute full: about 42.3 GB" in said
    first = replace(RANK, rank=0, memory={**RANK.memory, "total": 60_028_000_000})
    both = dry_text([first, last], job, from_options({}), {0: "any", 24: "any"}, 50)
    assert "  recompute full: about 43.6 GB" in both


def test_narrower_moments_are_advised_where_states_are_too_much() -> None:
    """8B on one H200 was said to fit by no change: with moments in bfloat16 it needs 113.5 GB, and fits."""
    job = make_job("tp1", shape="llama-8b", seq_len=4096, dtype="bfloat16", device="cuda")
    job = replace(job, micro_batch_size=1, global_batch_size=1)
    rank = replace(RANK, rank=0, memory={**RANK.memory, "total": 145_598_000_000})
    assert "  precision bfloat16_moments: about 113.5 GB\n" in dry_text([rank], job, from_options({}), {0: "any"}, 141)


@pytest.mark.parametrize(
    ("layout", "options", "job", "why"),
    [
        ("dp2+ep2", {}, {"shape": "moe-tiny"}, "routing real sends what the router decides"),
        ("dp2", {"compress": "powersgd"}, {}, "compress powersgd"),
        ("tp3", {}, {}, "does not divide the 8 attention heads"),
    ],
)
def test_what_cannot_be_dry_run_is_refused_with_the_reason(
    layout: str, options: dict[str, Any], job: dict[str, Any], why: str
) -> None:
    assert why in str(objection(make_job(layout, **job), from_options(options)))
    balanced = from_options({"routing": "balanced"})
    assert objection(make_job("dp2+ep2", shape="moe-tiny", dtype="float32"), balanced) is None
    in_float64 = objection(make_job("dp2+ep2", shape="moe-tiny"), balanced)
    assert str(in_float64).endswith("how many rows each expert has takes data; float32 can be dry-run")


@pytest.mark.gloo
def test_a_compiled_step_is_run_without_compile_and_says_so() -> None:
    job, compiled = make_job("dp2", dtype="float32"), from_options({"compile": True})
    assert objection(job, compiled) is None
    (found,) = dry_ranks(Ours(), job, compiled, "megatron", [1])
    (plain,) = dry_ranks(Ours(), job, from_options({}), "megatron", [1])
    assert plain.left_out == []
    assert replace(found, left_out=[], spent_s=0, process_bytes=0) == replace(plain, spent_s=0, process_bytes=0)
    said = dry_text([found], job, compiled, {1: "dp 1"}, 0).splitlines()
    what = "this step is not compiled: a compiled layer may keep less for backward and launch fewer operators."
    assert said[1] == what


@pytest.mark.gloo
def test_heads_that_a_gpu_fills_up_are_said_not_to_be_filled() -> None:
    job = make_job("tp1", shape="llama-tiny-uneven", dtype="bfloat16", device="cuda")
    (found,) = dry_ranks(Ours(), job, from_options({}), "megatron", [0])
    assert found.left_out == [f"{job.fills_heads}; here they are as they came"]


def test_one_rank_of_each_stage_is_run() -> None:
    assert stage_ranks(make_job("pp2-dp2"), "megatron") == [0, 2]
    assert stage_ranks(make_job("dp4"), "megatron") == [0]


class Dies(Ours):
    def build(self, *_: Any) -> Any:
        os._exit(7)


class Raises(Ours):
    def build(self, *_: Any) -> Any:
        raise RuntimeError("no such operator\n  on fakes")


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("trainer", "said"),
    [(Dies, "its process ended with 7"), (Raises, r"RuntimeError: no such operator on fakes \(.*test_dry\.py:\d+\)")],
)
def test_a_process_that_fails_is_told_in_one_sentence(trainer: type[Ours], said: str) -> None:
    with pytest.raises(DryRunFailed, match=f"the dry run of rank 1 failed: {said}"):
        list(dry_ranks(trainer(), make_job("dp2"), from_options({}), "megatron", [1]))


@pytest.mark.gloo
def test_a_gpus_step_holds_what_the_formulas_say_of_one() -> None:
    job = make_job("tp2+sp", shape="llama-1b", seq_len=512, dtype="bfloat16", global_batch_size=2, device="cuda")
    (found,) = dry_ranks(Ours(), job, from_options({}), "megatron", [1])
    expected = expected_memory(active_in(job.layout, from_options({})), job)
    for category, size_bytes in expected.items():
        assert found.memory[category] == pytest.approx(size_bytes, rel=1e-3), category
    on_cpu = replace(job, device="cpu")
    (found_on_cpu,) = dry_ranks(Ours(), on_cpu, from_options({}), "megatron", [1])
    assert found_on_cpu.memory["activations"] > 1.05 * found.memory["activations"]


class _Watched(TorchDispatchMode):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._launches.saw(func, args, kwargs or {}, result)
        return result


def chains(_: object = None) -> list[dict[str, int]]:
    """Of all-reduces one after the other, and of as many that do not wait for one another."""
    found = []
    dist.destroy_process_group()
    with fake_group(0, 4, "cpu"), fake_tensors():
        for depends in (True, False):
            launches = Launches(TrafficCounter({dist.group.WORLD.group_name: "dp"}))  # type: ignore[union-attr]
            with _Watched(launches):
                tensor = torch.ones(8)
                for _step in range(3):
                    tensor = tensor * 2 if depends else torch.ones(8)
                    dist.all_reduce(tensor)
            found.append(dict(launches.chain))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # what the end of a rank takes down
    return found


@pytest.mark.gloo
def test_a_chain_is_what_waits_for_one_another() -> None:
    assert run_ranks(1, chains) == [[{"dp": 3}, {"dp": 1}]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tp2", "--shape", "llama-tiny", "--rank", "2"], "--rank 2: tp2 has the ranks 0 to 1."),
        (["tp2", "--shape", "llama-tiny", "--gpu", "a100"], "--gpu 'a100' is not in the tables."),
        (["tp1", "--shape", "llama-tiny", "--gpu", "v100-sxm2-32gb"], "on --gpu v100-sxm2-32gb: dtype bfloat16: v100-"),
        (
            ["tp1", "--shape", "llama-tiny", "--gpu", "a100-sxm4-80gb", "--set", "float8=rowwise"],
            "on --gpu a100-sxm4-80gb: float8: a100-sxm4-80gb has no units for e4m3fn",
        ),
        (["tp2", "--shape", "llama-tiny", "--set", "schedule=zz"], "option 'schedule' must be one of"),
        (["tp2", "--shape", "llama-tiny", "--set", "recompute"], "write recompute=VALUE; it is one of"),
        (
            ["tp1", "--shape", "llama-tiny", "--set", "recompute=full", "--set", "recompute=none"],
            "--set recompute is given twice, as 'full' and as 'none'",  # the second was taken
        ),
        (["tp2", "--shape", "llama-tiny", "--set", "precision=pure_bfloat16"], "its own: --precision pure_bfloat16"),
        (["tp2", "--shape", "llama-tiny", "--set", "shedule=zbv"], "Did you mean 'schedule'?"),
        (["dp2", "--shape", "llama-tiny", "--num-nodes", "2"], "dp2 has 2 ranks, and 2 nodes of 8 GPUs have 16."),
        (
            ["dp8", "--shape", "llama-tiny", "--gpus-per-node", "3"],
            "nodes of 3 GPUs do not share them evenly: 2.667 no",
        ),
        (["tp3", "--shape", "llama-tiny"], "tp3 of llama-tiny cannot be dry-run: tp3 does not divide"),
        (["pp8", "--shape", "llama-tiny"], "pp8 with 1 chunk per rank has 8 stages, and llama-tiny has 4 layers"),
        (["dp2", "--shape", "llama-tiny", "--set", "schedule=zbv"], "--set schedule has no effect: it belongs to Pip"),
        (
            ["tp1", "--shape", "llama-tiny", "--set", "recompute={a: b"],
            "error: --set recompute={a: b: '{a: b' is not YAML.",
        ),
        (["tp1", "--shape", "llama-tiny", "--seq-len", "99999999999"], "a whole number from 2 to 16777216, not"),
        (
            ["tp1", "--shape", "llama-tiny", "--global-batch-size", "5000"],
            "a step of 5,000 micro-batches (global",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_2(words: list[str], said: str) -> None:
    answer = CliRunner().invoke(main, ["dry-run", *words])
    assert answer.exit_code == 2
    assert said in answer.output


def test_what_is_sent_is_told_in_order_and_cut_with_a_word() -> None:
    layer = [Sent("tp", "all_gather", 2**20, "bfloat16", 2, 1), Sent("tp", "reduce_scatter", 2**20, "bfloat16", 2, 1)]
    irregular = [Sent("dp", "all_reduce", number, "float32", 2, 1) for number in range(50)]
    job = make_job("dp2-tp2", shape="llama-8b", seq_len=4096, dtype="bfloat16")
    lines = dry_text([replace(RANK, sent=layer * 9 + irregular)], job, from_options({}), {3: ""}, 141).splitlines()
    at = lines.index("  9 times:")
    assert lines[at - 1].split() == ["#", "sent,", "in", "order", "each"]
    assert lines[at + 1].split() == ["1", "all_gather", "on", "tp", "1MiB"]
    assert "and 13 more lines, which the page of --out has" in lines


@pytest.mark.gloo
@pytest.mark.parametrize("gpu", ["NVIDIA H200", "h200-sxm-141gb"])  # the second was refused with --out, and only there
def test_out_stores_the_step_as_a_run_with_its_page(tmp_path: Path, gpu: str) -> None:
    out, shape = tmp_path / "run", tmp_path / "config.json"
    shape.write_text(json.dumps(LLAMA))
    words = ["dp3-tp2+sp+zero1", "--shape", str(shape), "--seq-len", "64", "--rank", "5", "--gpu", gpu]
    answer = CliRunner().invoke(main, ["dry-run", *words, "--set", "recompute=full", "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    assert "rank 5 (pp 0, dp 2, cp 0, tp 1) needs 0.00" in answer.output
    rows = [row for row in read(RunFolder.open(out)).rows if row.metric == "peak_memory"]
    assert {(row.case, row.detail["source"]) for row in rows} == {("dry_step/1n6/dp3-tp2+sp+zero1", "dry run")}
    assert "rank 5" in rows[0].basis
    page = (out / "index.html").read_text()
    assert "sent, in order" in page
    assert "1 of 1 case fits the 141 GB of NVIDIA H200" in page

    again = CliRunner().invoke(main, ["dry-run", *words, "--out", str(out)])
    assert (again.exit_code, "exists and is not empty" in again.output) == (2, True)


def test_a_rank_that_fails_is_the_outcome_of_what_out_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(asked: AskedDryRun) -> NoReturn:
        raise DryRunFailed("the dry run of rank 1 failed: its process ended with -9")

    monkeypatch.setattr(AskedDryRun, "done", fails)
    answer = CliRunner().invoke(main, ["dry-run", "pp2", "--shape", "llama-tiny", "--out", str(tmp_path / "run")])
    assert (answer.exit_code, answer.output) == (1, "error: the dry run of rank 1 failed: its process ended with -9\n")
    (outcome,) = RunFolder.open(tmp_path / "run").outcomes()
    assert (outcome.status, outcome.reason) == ("failed", "the dry run of rank 1 failed: its process ended with -9")
    assert "its process ended with -9" in (tmp_path / "run" / "index.html").read_text()


def started(words: Sequence[str], **streams: int) -> tuple[subprocess.Popen[str], Sequence[psutil.Process]]:
    """A dry run that takes minutes, and its ranks."""
    words = ["pp2", "--shape", "llama-tiny", "--seq-len", "64", "--global-batch-size", "4096", *words]
    asked = subprocess.Popen([sys.executable, "-m", "clusterbench", "dry-run", *words], text=True, **streams)
    while not (ranks := psutil.Process(asked.pid).children()):
        assert asked.poll() is None
        time.sleep(0.1)
    return asked, ranks


@pytest.mark.gloo
def test_an_interrupted_dry_run_has_a_page_and_says_what_interrupted_it(tmp_path: Path) -> None:
    asked, _ = started(["--out", str(tmp_path / "run")], stderr=subprocess.PIPE)
    asked.send_signal(signal.SIGTERM)
    _, said = asked.communicate(timeout=60)
    assert (asked.returncode, said) == (1, "error: stopped before the end: it was interrupted by SIGTERM.\n")
    assert "not run" in (tmp_path / "run" / "index.html").read_text()


@pytest.mark.gloo
def test_ranks_end_with_who_asked_for_them() -> None:
    asked, ranks = started([], stderr=subprocess.DEVNULL)
    asked.kill()
    asked.wait()
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert alive == []
