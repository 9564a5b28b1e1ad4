"""Logs of Megatron-LM and torchtitan as rows of training speed."""

from __future__ import annotations

import json
import shutil

import pytest

# NVIDIA/Megatron-LM, issue 756: Mixtral on 16 H100; the list of arguments is as microsoft/superbenchmark,
# tests/data/megatron_deepspeed.log, has it.
ARGUMENTS = """\
------------------------ arguments ------------------------
  bf16 ............................................ True
  context_parallel_size ........................... 1
  fp16 ............................................ False
  hidden_size ..................................... 4096
  micro_batch_size ................................ 1
  num_layers ...................................... 32
  pipeline_model_parallel_size .................... 4
  seq_length ...................................... 2048
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 2
  use_distributed_optimizer ....................... True
  world_size ...................................... 16
-------------------- end of arguments ---------------------
"""
MEMORY = (
    "[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 54250.97802734375 | max allocated: {most} | "
    "reserved: 61480.0 | max reserved: 61480.0\n"
)
STEP = (
    " [2024-04-06 02:55:45] iteration {number:8d}/       4 | consumed samples:          256 | "
    "elapsed time per iteration (ms): {ms} | "
    "throughput per GPU (TFLOP/s/GPU): {rate} | learning rate: 4.000000E-07 | global batch size:   128 | "
    "lm loss: {loss} | loss scale: 1.0 | grad norm: 6.895 | number of skipped iterations:   0 | number of nan "
    "iterations:   {nan} |\n"
)


def step(number, ms, rate, loss="2.003316E+00", nan=0):
    return STEP.format(number=number, ms=ms, rate=rate, loss=loss, nan=nan)


MEGATRON = (
    ARGUMENTS
    + step(1, 25849.1, 38.6)
    + MEMORY.format(rank=0, most="54250.98583984375")
    + MEMORY.format(rank=8, most="50250.5")
    + step(2, 5630.1, 231.9)
    + step(3, 5410.6, 241.4)
    + step(4, 5364.1, 243.5, "2.009657E+00")
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
OOM_KILLED = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
)
TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-04-06T03:00:00 DUE TO TIME LIMIT ***\n"
TRACEBACK = "Traceback (most recent call last):\n"

# Found by its text in an index of public GitHub files, which names no repository: torchtitan on 8 H200, 3 of
# its 10 steps.
TITAN = """\
[rank0]:[titan] 2025-11-25 19:44:55,287 - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]
[rank0]:[titan] 2025-11-25 19:44:58,595 - root - INFO - Model llama3 debugmodel size: 6,163,712 total parameters
[rank0]:[titan] 2025-11-25 19:44:58,838 - root - INFO - Trainer is initialized with local batch size 8, \
global batch size 64, gradient accumulation steps 1, sequence length 2048, total steps 3 (warmup 2)
[rank0]:[titan] 2025-11-25 19:45:01,441 - root - INFO - step:  1  loss:  8.0277  grad_norm:  1.4604  \
memory:  1.21GiB(0.86%)  tps: 5,756  tflops: 0.41  mfu: 0.04%
[rank0]:[titan] 2025-11-25 19:45:01,496 - root - INFO - step:  2  loss:  7.7082  grad_norm:  1.5585  \
memory:  1.34GiB(0.96%)  tps: 301,092  tflops: 21.55  mfu: 2.18%
[rank0]:[titan] 2025-11-25 19:45:01,542 - root - INFO - step:  3  loss:  6.9532  grad_norm:  2.4236  \
memory:  1.34GiB(0.96%)  tps: 359,546  tflops: 25.74  mfu: 2.60%
[rank0]:[titan] 2025-11-25 19:45:03,885 - root - INFO - Training completed
"""
OTHER_RANK = (
    TITAN.splitlines(keepends=True)[4].replace("rank0", "rank1").replace("301,092", "300,000").replace("21.55", "21.47")
)


def _said(tmp_path):
    run = tmp_path / "run"
    (outcome,) = map(json.loads, (run / "outcomes.jsonl").read_text().splitlines())
    notes = json.loads((run / "environment.json").read_text())["imported"]["notes"]
    point = json.loads((run / "plan.jsonl").read_text().splitlines()[1])["point"]
    return outcome["status"], outcome["reason"], notes, point


def test_megatrons_steps_are_a_case_with_its_layout_and_the_first_is_left_out(imported, tmp_path):
    rows = imported(MEGATRON, num_nodes=2)
    row = {metric: value for (_, metric), (value, _) in rows.items()}
    assert row == pytest.approx(
        {
            "step_time": 5.4106,
            "tokens_per_s": 128 * 2048 / 5.4106,
            "tokens_per_s_per_rank": 128 * 2048 / 5.4106 / 16,
            "model_flops_per_s_per_rank": 241.4e12,
            "peak_memory/allocated": 54250.98583984375 * 2**20,
            "peak_memory/reserved": 61480 * 2**20,
            "loss": 2.009657,
        }
    )
    status, _, notes, point = _said(tmp_path)
    assert (status, notes) == (
        "ok",
        ["said.txt: figures are of 3 printed steps; the first, which holds the start, is left out"],
    )
    assert point == {
        "shape": "L32-h4096",
        "layout": "pp4-dp2-tp2+sp+zero1",
        "seq_len": 2048,
        "micro_batch_size": 1,
        "dtype": "bfloat16",
        "global_batch_size": 128,
    }


def _argument(name, value):
    return f"  {name} {'.' * (48 - len(name))} {value}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}, "pp4-dp2-tp2+sp+zero3"),
        ({"use_custom_fsdp": True, "data_parallel_sharding_strategy": "no_shard"}, "pp4-dp2-tp2+sp"),
        ({"data_parallel_sharding_strategy": "optim_grads_params"}, "pp4-dp2-tp2+sp+zero1"),  # without FSDP no effect
        ({"use_torch_fsdp2": True}, "pp4-dp2-tp2+sp+zero3"),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"}, "pp4-dp2-tp2+sp+zero1"),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}, "pp4-dp2-tp2+sp+zero2"),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "new"}, None),
        ({"ds_sequence_parallel_size": 2}, None),
    ],
)
def test_a_layout_is_what_the_arguments_say_or_is_left_out(imported, tmp_path, arguments, expected):
    """FSDP went as ZeRO-1, by its optimizer alone."""
    imported(
        MEGATRON.replace("  bf16", "".join(_argument(*each) for each in arguments.items()) + "  bf16"), num_nodes=2
    )
    _, _, notes, point = _said(tmp_path)
    assert point.get("layout") == expected
    assert any("its layout has no name here: it has" in note for note in notes) == (expected is None)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("context_parallel_size ........................... 1", "context_parallel_size ... 2", "pp4-cp2-tp2+sp+zero1"),
        ("sequence_parallel ............................... True", "sequence_parallel ... False", "pp4-dp2-tp2+zero1"),
        ("use_distributed_optimizer ....................... True", "use_other ... True", "pp4-dp2-tp2+sp"),
    ],
)
def test_a_layout_has_the_ranks_that_the_arguments_leave_to_dp(imported, tmp_path, old, new, expected):
    imported(MEGATRON.replace(old, new), num_nodes=2)
    assert _said(tmp_path)[3]["layout"] == expected


# torchtitan/trainer.py of August 2026 counts tokens in place of sequences.
OF_TOKENS = TITAN.replace(
    "local batch size 8, global batch size 64, gradient accumulation steps 1, sequence length 2048, total",
    "16384 tokens per DP rank, {tokens} tokens per train step, gradient accumulation steps 1, maximum context length "
    "2048, total",
)


def test_a_batch_of_tokens_is_as_many_sequences_as_it_fills(imported, tmp_path):
    rows = imported(TITAN, num_nodes=1)
    point = _said(tmp_path)[3]
    shutil.rmtree(tmp_path / "run")
    assert imported(OF_TOKENS.format(tokens=131072), num_nodes=1) == rows
    assert _said(tmp_path)[3] == point


def test_a_batch_of_tokens_that_fills_no_number_of_sequences_has_none(imported, tmp_path):
    rows = imported(OF_TOKENS.format(tokens=131073), num_nodes=1)
    assert "tokens_per_s_per_rank" in {metric for _, metric in rows}
    assert {"global_batch_size", "micro_batch_size"} & {*_said(tmp_path)[3]} == {"micro_batch_size"}


def test_steps_of_a_batch_that_grew_are_left_out(imported, tmp_path):
    """5.6301 s are of 64 sequences, and those of 128 took 5.4106 and 5.3641 s."""
    first, second = step(1, 25849.1, 38.6), step(2, 5630.1, 231.9)
    text = MEGATRON.replace(second, second.replace("  128 |", "   64 |")).replace(
        first, first.replace("  128 |", "   64 |")
    )
    rows = imported(text, num_nodes=2)
    row = {metric: value for (_, metric), (value, _) in rows.items()}
    assert row["step_time"] == pytest.approx((5.4106 + 5.3641) / 2)
    assert "said.txt: 2 of 4 printed steps had another batch, and are left out" in _said(tmp_path)[2]


def test_steps_that_changed_no_weights_are_said(imported, tmp_path):
    """While it looks for a scale of the loss Megatron-LM skips the optimizer, and prints no loss."""
    skipped = MEGATRON.replace("skipped iterations:   0", "skipped iterations:   1", 3)
    imported(skipped, num_nodes=2)
    note = "said.txt: 2 of 3 counted steps hold skipped iterations, which change no weights and run no optimizer"
    assert note in _said(tmp_path)[2]


def test_a_step_in_fp8_is_none_in_bfloat16(imported, tmp_path):
    imported(MEGATRON.replace("  bf16", _argument("fp8", "hybrid") + "  bf16"), num_nodes=2)
    point = _said(tmp_path)[3]
    assert (point["fp8"], "dtype" in point) == ("hybrid", False)


def test_a_log_without_its_arguments_says_what_it_prints_and_one_that_stops_is_noted(imported, tmp_path):
    rows = imported(step(1, 5630.1, 231.9) + step(2, 5410.6, 241.4), num_ranks=16, num_nodes=2)
    assert {metric for _, metric in rows} == {"step_time", "model_flops_per_s_per_rank", "loss"}
    assert _said(tmp_path)[2][1] == "said.txt: the text ends at step 2 of 4, and does not say why"


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        (MEGATRON[: MEGATRON.index("50250")] + "\n" + OUT_OF_MEMORY, "out_of_memory", "said.txt:18: torch.OutOfMem"),
        (MEGATRON[: MEGATRON.index("50250")] + "\n" + TRACEBACK, "failed", "said.txt:18: Traceback"),
        (
            MEGATRON[: MEGATRON.index("50250")] + "\n" + OOM_KILLED,
            "out_of_memory",
            "said.txt:18: slurmstepd: error: Det",
        ),
        (MEGATRON[: MEGATRON.index("50250")] + "\n" + TIME_LIMIT, "timeout", "said.txt:18: slurmstepd: error: *** JOB"),
        (MEGATRON.replace("2.009657E+00", "NAN"), "wrong", "said.txt: the loss of line 20 is no number"),
        (ARGUMENTS + TRACEBACK, "failed", "said.txt:15: Traceback"),
        (MEGATRON + TRACEBACK, "ok", ""),
        (MEGATRON.replace("tions:   0 |", "tions:   2 |"), "wrong", "said.txt: line 15 counts iterations whose loss"),
        (TITAN[: TITAN.index("[rank0]:[titan] 2025-11-25 19:45:01,542")] + TRACEBACK, "failed", "said.txt:6: Trace"),
        (TITAN.replace("7.7082", "nan"), "wrong", "said.txt: the loss of line 5 is no number"),
    ],
)
def test_a_run_that_failed_is_no_speed(imported, tmp_path, text, status, reason):
    rows = imported(text, num_nodes=2)
    assert (status == "ok") == any(value is not None for value, _ in rows.values())
    said = _said(tmp_path)
    assert said[0] == status
    assert said[1].startswith(reason)


def test_titans_tokens_are_of_each_rank_and_a_step_is_as_slow_as_its_slowest(imported, tmp_path):
    rows = imported(
        TITAN.replace("[rank0]:[titan] 2025-11-25 19:45:01,542", f"{OTHER_RANK}[rank0]:[titan] "), num_nodes=1
    )
    row = {metric: value for (_, metric), (value, _) in rows.items()}
    tokens = (300_000 + 359_546) / 2
    assert row == pytest.approx(
        {
            "tokens_per_s_per_rank": tokens,
            "tokens_per_s": tokens * 8,
            "step_time": (64 * 2048 / 300_000 / 8 + 64 * 2048 / 359_546 / 8) / 2,
            "model_flops_per_s_per_rank": (21.47e12 + 25.74e12) / 2,
            "mfu/imported": (0.0218 + 0.0260) / 2,
            "peak_memory/reserved": 1.34 * 2**30,
            "loss": 6.9532,
        }
    )
    assert _said(tmp_path)[3]["mesh"] == "dp_shard 8"


def test_degrees_of_experts_are_a_second_view_of_titans_ranks(imported, tmp_path):
    """pytorch/torchtitan, torchtitan/distributed/parallel_dims.py: ep and etp are cut out of the others."""
    pairs = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=4, etp=1"
    rows = imported(TITAN.replace("Building 1-D device mesh with ['dp_shard'], [8]", pairs), num_nodes=2)
    assert {case.partition("/")[0] for case, _ in rows} == {"2n16"}
    assert _said(tmp_path)[3]["mesh"] == "pp 2, dp_shard 8"


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (MEGATRON, {}, "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"),
        (
            step(1, 5.0, 2.0),
            {"num_nodes": 1},
            "said.txt does not say on how many ranks it ran.\nhint: say it with --num",
        ),
        (MEGATRON, {"num_ranks": 8, "num_nodes": 1}, "said.txt says that 16 ranks trained, and not 8."),
        (
            MEGATRON + MEGATRON,
            {"num_nodes": 2},
            "said.txt: iteration 1 is on line 15 and on line 35, so the text holds",
        ),
        (
            MEGATRON.replace("nan iterations:   0 |\n", "nan\n", 1),
            {"num_nodes": 2},
            "said.txt: the step of line 15 is not",
        ),
        (ARGUMENTS, {"num_nodes": 2}, "said.txt: the log has no step that ended"),
        (
            MEGATRON.replace("|\n [2024", "| [2024"),
            {"num_nodes": 2},
            "said.txt: line 18 holds two steps, of which it is not known what is of which",
        ),
        (
            MEGATRON + ARGUMENTS.replace(". 16", ". 32") + step(5, 1.0, 1.0),
            {"num_nodes": 2},
            "said.txt: world_size is '16' and '32', so the text holds several runs",
        ),
        (
            TITAN.replace("size 64", f"size {'6' * 250}"),
            {"num_nodes": 1},
            "said.txt: torchtitan printed '6666666666666666666666666666666666666666' where",
        ),
        (
            TITAN.replace("loss:  7.7082", "loss:  7.70.82"),
            {"num_nodes": 1},
            "said.txt: torchtitan printed '7.70.82' where a number belongs",
        ),
        (
            TITAN.replace("301,092", "301,\n092"),
            {"num_nodes": 1},
            "said.txt: the step of line 5 is not whole: 'step:",
        ),
        (
            TITAN.replace("  mfu: 2.18%", ""),
            {"num_nodes": 1},
            "said.txt: the step of line 5 is not whole: 'step:",
        ),
        (
            TITAN + TITAN.replace("size 64", "size 32"),
            {"num_nodes": 1},
            "said.txt: the log says 2 batches, so it holds se",
        ),
        (
            TITAN + TITAN,
            {"num_nodes": 1},
            "said.txt: a run begins on line 10, behind the steps of another, so the text holds several: give each",
        ),
        (
            TITAN.replace("global batch", "batch"),
            {"num_nodes": 1},
            "said.txt: the log has no line with 'global batch si",
        ),
        (
            TITAN.replace("  mfu: 2.18%", "  mfu: 2."),
            {"num_nodes": 1},
            "said.txt: the step of line 5 is not whole: 'step:",
        ),
    ],
)
def test_what_does_not_say_enough_or_is_cut_is_refused(refused, text, facts, message):
    assert refused(text, **facts).startswith(message)
