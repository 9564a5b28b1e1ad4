"""When the loss goes in chunks, when it does not, and what that saves."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.expected.memory import held_memory
from clusterbench.expected.total import fullest_moment
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options
from clusterbench.parallel.chunked_loss import ChunkedLoss
from tests.training.jobs import make_job, objection_to


def test_one_chunk_is_no_chunks() -> None:
    assert not ChunkedLoss().active(ParallelLayout())
    assert ChunkedLoss(loss_chunks=2).active(ParallelLayout())


@pytest.mark.parametrize(
    ("layout", "chunks", "reason"),
    [
        ("tp2", 2, "loss_chunks and tp2: the logits are cut over tp already, and so is the loss (loss_parallel)"),
        ("pp2", 2, "loss_chunks and pp2: a schedule takes the loss from logits that the last stage hands it"),
        ("tp1", 3, "loss_chunks 3 does not divide the 32 tokens of a micro-batch on a rank: 32 / 3 = 10.67"),
        ("cp2", 32, "loss_chunks 32 does not divide the 16 tokens of a micro-batch on a rank: 16 / 32 = 0.5"),
    ],
)
def test_what_cannot_be_says_why(layout: str, chunks: int, reason: str) -> None:
    assert objection_to((layout, {"loss_chunks": chunks}, {})) == reason


def test_a_twin_of_few_tokens_has_four_chunks() -> None:
    assert ChunkedLoss(loss_chunks=64).for_proof() == ChunkedLoss(loss_chunks=4)
    assert ChunkedLoss(loss_chunks=3).for_proof() == ChunkedLoss(loss_chunks=3)
    assert ChunkedLoss().for_proof() == ChunkedLoss()


def of_8b(chunks: int, **options: Any) -> tuple[float, str]:
    """GB that llama-8b with 8,192 tokens in a micro-batch holds at most on a GPU, and when."""
    job = make_job(
        shape="llama-8b", seq_len=8192, micro_batch_size=1, global_batch_size=2, dtype="bfloat16", device="cuda"
    )
    moment = fullest_moment(active_in(job.layout, from_options({"loss_chunks": chunks, **options})), job)
    return moment.held / 1e9, moment.when


def test_eight_chunks_of_8192_tokens_save_the_logits_of_llama_8b() -> None:
    logits = 8192 * 128_256 * 2
    whole, when = of_8b(1, recompute="full")
    assert when == "backward of the loss"
    chunked, when = of_8b(8, recompute="full")
    assert when != "backward of the loss"
    assert whole - chunked > 2 * logits / 1e9


def test_a_gradient_that_is_kept_as_it_was_made_counts_as_one_and_not_as_an_activation() -> None:
    def slack(layout: str, batch: int, dtype: str) -> float:
        job = make_job(layout, global_batch_size=batch, dtype=dtype)
        return sum(each.size_bytes for each in ChunkedLoss(loss_chunks=2).slack(job))

    head = 4.0 * make_job().shape.vocab_size * make_job().shape.hidden_size
    assert slack("tp1", 2, "bfloat16") == head
    assert slack("tp1", 4, "bfloat16") == slack("dp2", 4, "bfloat16") == slack("dp2+zero3", 8, "bfloat16") == 0
    assert slack("dp2+zero3", 8, "float32") == head
    held = held_memory(active_in(ParallelLayout(), from_options({"loss_chunks": 2})), make_job())
    assert held["activations"] > head
