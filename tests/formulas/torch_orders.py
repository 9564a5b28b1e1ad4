"""Prints torch's own pipeline orders, a JSON line per case: what was asked, and the order or why it was refused.

Run in a process of its own, since it makes and ends process groups; they are fake ones, of which no rank but 0 exists.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

from clusterbench.formulas.schedules import SCHEDULES, stages_of

NUM_RANKS = (1, 2, 3, 4, 8)
NUM_MICROBATCHES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)


def main() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for num_ranks in NUM_RANKS:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
        for schedule, num_microbatches, chunks in itertools.product(SCHEDULES, NUM_MICROBATCHES, (1, 2, 3)):
            if SCHEDULES[schedule].torch_class and (chunks == 1 or SCHEDULES[schedule].chunks > 1):
                order = torch_order(schedule, num_ranks, num_microbatches, chunks)
                print(json.dumps([schedule, num_ranks, num_microbatches, chunks, order]))
        dist.destroy_process_group()


def torch_order(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> list[list[str]] | str:
    import torch
    from torch.distributed import pipelining

    # A V of other than two chunks is there to be refused, so its placement does not matter.
    placed_as = schedule if chunks == SCHEDULES[schedule].chunks else "gpipe"
    stages = [
        pipelining.PipelineStage(torch.nn.Identity(), stage, num_ranks * chunks, torch.device("cpu"))
        for stage in stages_of(placed_as, num_ranks, chunks, rank=0)
    ]
    single = SCHEDULES[schedule].chunks == 1
    try:
        built = getattr(pipelining, SCHEDULES[schedule].torch_class)(stages[0] if single else stages, num_microbatches)
    except ValueError as refused:
        return str(refused)
    table = built._get_pipeline_order() if single else built.pipeline_order
    return [list(computations(table[rank])) for rank in range(num_ranks)]


def computations(actions) -> Iterator[str]:
    for action in filter(None, actions):
        yield from (str(part) for part in action.sub_actions or (action,) if part.computation_type.value in "FBIW")


if __name__ == "__main__":
    main()
