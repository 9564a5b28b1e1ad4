"""``clusterbench layout``: what is asked of a layout, on the nodes that it takes and for a step of a model."""

from __future__ import annotations

from clusterbench.cluster import Accelerator, card_with_memory, fewest_nodes
from clusterbench.errors import SuiteError
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.layout_view import LayoutView, view_layout
from clusterbench.shape_file import asked_shape

MICRO_BATCHES = 4
"""Of each pipeline stage, where no batch is said."""


def asked_view(
    layout: str,
    num_nodes: int | None,
    rank_order: str,
    shape: str | None,
    seq_len: int,
    global_batch_size: int | None,
    micro_batch_size: int,
    gpu: str | None,
) -> tuple[LayoutView, Accelerator | None]:
    """The view, and the card that it should fit.

    Raises
    ------
    SuiteError
        For a layout, a model, a card, an order of ranks or a batch that cannot be.
    """
    wanted = ParallelLayout.parse(layout)
    job = None
    if shape is not None:
        sequences = global_batch_size or MICRO_BATCHES * wanted.pp * wanted.dp * micro_batch_size
        job = TrainingJob(
            asked_shape(shape), wanted, seq_len, sequences, micro_batch_size, dtype="bfloat16", device="cuda"
        )
    card = None if gpu is None else card_with_memory(gpu)
    if card is not None and "bfloat16" in card.lacks:
        raise SuiteError(
            f"--gpu {gpu} has no units for bfloat16, and what is told here is of bfloat16 training.\n"
            f"hint: 'clusterbench dry-run {layout} --dtype float32' with the same --shape and --gpu"
        )
    if num_nodes is None:
        num_nodes = 1 if card is None else fewest_nodes(wanted.world_size, card.usual_gpus_per_node)
    return view_layout(wanted, num_nodes, rank_order, job), card
