"""Plain DDP goes through the door every trainer takes: objection, proof, clock, passes, report."""

from __future__ import annotations

from typing import Any

import pytest

import clusterbench
from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options
from clusterbench.trainers import trainer_of, trainers
from clusterbench.trainers.ours import Ours
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig, parity_of

PLAIN = "plain_ddp"


def objection(layout: str, shape: str = "llama-tiny", **options: Any) -> str | None:
    job = make_job(layout, shape=shape)
    return trainers()[PLAIN]().objection(job, active_in(job.layout, from_options(options)))


def test_it_takes_one_rank_and_data_parallelism():
    assert objection("tp1") is None
    assert objection("dp4") is None


@pytest.mark.parametrize(
    ("layout", "options", "who"),
    [
        ("tp2", {}, "TensorParallel"),
        ("dp2+zero3", {}, "FullySharded"),
        ("dp2", {"recompute": "full"}, "Recompute"),
        ("dp2", {"compress": "bf16"}, "DataParallel"),
    ],
)
def test_it_refuses_what_it_cannot_share(layout, options, who):
    reason = objection(layout, **options)
    assert reason is not None
    assert reason.startswith(
        f"trainer plain_ddp shares a step over dp alone, with no option; this {layout} needs {who}"
    )


def test_it_refuses_experts_with_their_number():
    assert objection("dp2", "moe-tiny") == "trainer plain_ddp runs dense models; moe-tiny has 8 experts"


def test_a_point_that_names_no_trainer_is_ours():
    assert type(trainer_of({})).__name__ == "Ours"


@pytest.mark.gloo
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_it_computes_what_one_rank_computes(dtype):
    evidence = run_ranks(2, parity_of, "dp2", {}, {"dtype": dtype}, PLAIN)[0]
    assert isinstance(evidence, dict), evidence


def without_averaging(layout: str) -> Any:
    from clusterbench.trainers.plain_ddp.step import PlainDDPStep

    honest = PlainDDPStep.__init__

    def alone(self: Any, *arguments: Any) -> None:
        honest(self, *arguments)
        self.model = self.modules[0]

    PlainDDPStep.__init__ = alone  # type: ignore[method-assign]
    return parity_of(layout, {}, {}, PLAIN)


@pytest.mark.gloo
def test_ranks_that_do_not_average_are_wrong():
    for verdict in run_ranks(2, without_averaging, "dp2"):
        assert "does not compute what one rank computes: the gradient of" in verdict


def memory_and_traffic(trainer: str, dtype: str = "float32") -> Any:
    import torch

    from clusterbench.training.passes import passes_of

    job, rig = make_job("dp2", dtype=dtype), make_rig(ParallelLayout.parse("dp2"))
    step = trainers()[trainer]().build(job, from_options({}), rig.grid, torch.device("cpu"))
    step()
    passes = passes_of(step, rig)
    return {name: passes[name]() for name in ("memory", "traffic")}


@pytest.mark.gloo
def test_it_sends_what_ours_sends_and_keeps_buckets_beside_the_gradients():
    ours, plain = (run_ranks(2, memory_and_traffic, name)[0] for name in ("ours", PLAIN))
    assert plain["traffic"] == ours["traffic"]
    assert plain["memory"]["gradients"] == ours["memory"]["gradients"] == ours["memory"]["parameters"]
    assert (ours["memory"]["communication"], plain["memory"]["communication"]) == (0, plain["memory"]["parameters"])


@pytest.mark.gloo
def test_in_bfloat16_each_micro_batch_keeps_weights_as_it_has_rounded_them():
    job = make_job("dp2", dtype="bfloat16")
    held = run_ranks(2, memory_and_traffic, PLAIN, "bfloat16")[0]["memory"]
    said = trainers()[PLAIN]().predict(job, from_options({}), Cluster(1, 2, "cpu"), False)
    for category in ("parameters", "activations"):
        assert held[category] == pytest.approx(said[f"peak_memory[category={category}]"].value, rel=0.001), category
    assert held["parameters"] == 4 * job.shape.num_parameters


SUITE = """
suite: two_trainers
question: Is our step as fast as plain DDP?
benchmarks:
  - benchmark: train_step
    shape: llama-tiny
    seq_len: 32
    global_batch_size: 4
    layouts: [dp2]
    trainer: [ours, plain_ddp]
    dtype: float32
    iterations: 2
    warmup: 1
cpu: {num_ranks: 2}
"""


def test_the_whole_memory_is_not_predicted_as_gradients_are_there_twice():
    asked = make_job("dp2"), from_options({}), Cluster(1, 2, "cpu"), False
    plain, ours = trainers()[PLAIN]().predict(*asked), Ours().predict(*asked)
    assert ours.keys() - plain.keys() == {"peak_memory[category=total]", "memory_deviation[category=total]"}


@pytest.mark.gloo
def test_a_suite_runs_it_beside_ours(tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    run = tmp_path / "run"
    assert main(["run", str(tmp_path / "suite.yaml"), "--out", str(run), "--device", "cpu"], standalone_mode=False) in (
        0,
        None,
    )
    wide = clusterbench.wide_rows(run)
    assert sorted(wide["status"]) == ["ok", "ok"]
    assert len(set(wide["case"])) == 2
    assert (wide["tokens_per_s"] > 0).all()
    ours, plain = wide["loss"]
    assert plain == pytest.approx(ours, rel=1e-5)
