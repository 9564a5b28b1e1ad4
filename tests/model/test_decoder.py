"""The model on one device: against a second opinion, and as a function of the seed alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clusterbench.formulas.transformer import hardware_flops_per_token
from clusterbench.job import activations, weight_shapes
from clusterbench.model.decoder import Decoder, loss_of, rope_tables, rotate
from clusterbench.model.noise import fill_uniform, noise
from clusterbench.parallel import from_options
from clusterbench.shape import SHAPES, named_shape
from clusterbench.training.assemble import assemble
from clusterbench.training.data import micro_batches
from clusterbench.training.step import TrainingStep
from tests.training.jobs import make_job

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_model_has_the_weights_that_are_listed(name: str) -> None:
    job = make_job(shape=name)
    with torch.device("meta"):
        model = Decoder(job.shape, torch.float32, torch.arange(8), job.held[0])
    assert {name: tuple(weight.shape) for name, weight in model.named_parameters()} == weight_shapes(job)
    assert sum(weight.numel() for weight in model.parameters()) == named_shape(name).num_parameters


def test_attention_looks_back_and_never_ahead() -> None:
    job = make_job()
    model = assemble(job, [], None, torch.arange(job.seq_len), CPU).model
    tokens = micro_batches(job, 0, torch.arange(job.seq_len))[0][0]
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % job.shape.vocab_size
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_narrow_dtype_rounds_cosines_and_not_angles(dtype: torch.dtype) -> None:
    """At position 100,000 bfloat16 has only every 512th angle of the fastest pair of channels."""
    shape, positions = named_shape("llama-8b"), [1, 257, 4095, 100_000]
    cos, sin = rope_tables(shape, torch.tensor(positions), dtype)
    for at, position in enumerate(positions):
        for pair in (0, 1, 20, shape.head_dim // 2 - 1):
            angle = position * shape.rope_theta ** (-2 * pair / shape.head_dim)
            for place in (pair, pair + shape.head_dim // 2):
                assert float(cos[at, place]) == pytest.approx(math.cos(angle), abs=torch.finfo(dtype).eps)
                assert float(sin[at, place]) == pytest.approx(math.sin(angle), abs=torch.finfo(dtype).eps)


def test_rotation_makes_attention_depend_on_distance_alone() -> None:
    shape = named_shape("llama-tiny")
    q, k = torch.randn(2, 1, 1, 1, shape.head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(query_at: int, key_at: int) -> float:
        cos, sin = rope_tables(shape, torch.tensor([query_at, key_at]), torch.float64)
        return float((rotate(q, cos[:1], sin[:1]) * rotate(k, cos[1:], sin[1:])).sum())

    assert score(7, 3) == pytest.approx(score(1007, 1003), rel=1e-12)
    assert score(7, 3) != pytest.approx(score(7, 4), rel=1e-3)


def test_an_untrained_model_knows_nothing() -> None:
    # Logits of unit variance: the loss is the entropy of a uniform guess, and about half a nat.
    job = make_job(seq_len=64)
    ((tokens, labels), *_) = micro_batches(job, 0, torch.arange(job.seq_len))
    loss = float(loss_of(assemble(job, [], None, torch.arange(job.seq_len), CPU).model(tokens), labels).detach())
    assert loss == pytest.approx(math.log(job.shape.vocab_size) + 0.5, abs=0.3)


def test_training_on_one_batch_learns_it() -> None:
    step = TrainingStep(make_job(dtype="float32"), (), None, CPU)
    losses = [float(step()) for _ in range(12)]
    assert losses[-1] < losses[0] - 1


def test_accumulation_changes_nothing_but_the_memory() -> None:
    whole, parts = (TrainingStep(make_job(micro_batch_size=size), (), None, CPU).forward_backward() for size in (4, 1))
    assert float(whole) == pytest.approx(float(parts), rel=1e-14)


def test_clipping_leaves_the_norm_at_its_limit() -> None:
    step = TrainingStep(make_job(max_grad_norm=0.25), (), None, CPU)
    step.forward_backward()
    before = torch.cat([weight.gradient.flatten() for weight in step.weights]).norm()
    norm = step.clip()
    assert norm is not None
    assert float(norm) == pytest.approx(float(before))
    assert float(torch.cat([weight.gradient.flatten() for weight in step.weights]).norm()) == pytest.approx(0.25, 1e-5)


def test_bfloat16_keeps_float32_parameters_and_gradients() -> None:
    step = TrainingStep(make_job(dtype="bfloat16"), (), None, CPU)
    loss = step()
    assert {weight.parameter.dtype for weight in step.weights} == {torch.float32}
    assert {weight.gradient.dtype for weight in step.weights} == {torch.float32}
    assert loss.dtype == torch.float32
    assert step.model(step.micro_batches[0][0]).dtype == torch.bfloat16


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_hardware_flops_are_the_products_that_are_executed(recompute: str) -> None:
    step = TrainingStep(make_job(dtype="float32"), from_options({"recompute": recompute}), None, CPU)
    with FlopCounterMode(display=False) as counter:
        step()
    executed = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    # seq_len 0 leaves out attention, which the counter does not know on a CPU; 0.1 % are norms, which are no product
    formula = hardware_flops_per_token(step.job.shape, 0, recompute) * step.job.tokens_per_step
    assert executed == pytest.approx(formula, rel=2e-3)


def test_a_weight_is_the_same_however_it_is_cut() -> None:
    whole = torch.empty(6, 10, dtype=torch.float64)
    fill_uniform(whole, 3, "w", (0, 0), mean=0.0, std=1.0)
    part = torch.empty(2, 4, dtype=torch.float64)
    fill_uniform(part, 3, "w", (4, 6), mean=0.0, std=1.0)
    assert torch.equal(part, whole[4:, 6:])


def test_weights_differ_by_name_and_seed_and_have_the_spread_asked_for() -> None:
    first, second, third = (torch.empty(400, 300) for _ in range(3))
    fill_uniform(first, 0, "a", (0, 0), mean=0.0, std=0.5)
    fill_uniform(second, 0, "b", (0, 0), mean=0.0, std=0.5)
    fill_uniform(third, 1, "a", (0, 0), mean=0.0, std=0.5)
    assert float(first.std()) == pytest.approx(0.5, rel=0.01)
    assert float(first.mean()) == pytest.approx(0.0, abs=0.01)
    for decoder in (second, third):
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), decoder.flatten()]))[0, 1])) < 0.01
    rows = torch.corrcoef(first)
    assert float((rows - torch.eye(400)).abs().max()) < 0.35  # six standard deviations of 300 samples


def test_noise_is_the_same_everywhere() -> None:
    # Literals, so that no change of the generator goes unnoticed: it would make old runs incomparable.
    table = noise(0, "tokens", torch.tensor([0, 1]), torch.tensor([0, 1, 2]))
    assert table.tolist() == [[1407576791, 2569790796, 314419096], [1613651945, 2925292958, 2075847091]]


def test_every_dp_rank_has_its_own_part_of_the_global_batch() -> None:
    job = make_job("dp2", global_batch_size=8)
    whole = micro_batches(replace(job.on_one_rank(), micro_batch_size=8), 0, torch.arange(16))[0][0]
    parts = [micro_batches(job, rank, torch.arange(job.seq_len)) for rank in range(2)]
    assert [len(part) for part in parts] == [2, 2]
    in_order = [parts[rank][forward][0] for forward in range(2) for rank in range(2)]
    assert torch.equal(torch.cat(in_order), whole)


def test_labels_are_the_tokens_that_follow() -> None:
    ((tokens, labels), *_) = micro_batches(make_job(), 0, torch.arange(16))
    assert torch.equal(tokens[:, 1:], labels[:, :-1])


def test_logits_are_not_forgotten_among_the_activations() -> None:
    # 8192 tokens, 128k vocabulary: 4.2 GB per float32 copy (conventions.md, 2.4).
    job = make_job(shape="llama-8b", seq_len=8192, micro_batch_size=1, dtype="bfloat16")
    assert activations(job)["loss.log_softmax"] == 8192 * 128_256 * 4
