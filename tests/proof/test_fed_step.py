"""A step that is fed from a file is proven by what it computed on: planted readers are found, a healthy one is not."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

pytestmark = pytest.mark.gloo

CALLS = 5
SLOW_S = 0.2


def fed(layout: str, fault: str, faulty_rank: int, calls: int = CALLS) -> Any:
    """What the confirmation says of some calls of a step whose reader has a fault, on one rank."""
    from clusterbench.benchmarks._files import SharedFile
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof.fed_step import FedStep
    from clusterbench.training.step import TrainingStep
    from clusterbench.training.token_reader import TokenFile, TokenReader, steps_of_file

    job = make_job(layout)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)

    def call() -> None:
        step()
        if fault == "overwritten" and rig.rank == faulty_rank and step.num_steps == 3:
            step.micro_batches[0][0].add_(1)

    made = FedStep(step, call, active_in(job.layout, from_options({})), rig.device)
    with tempfile.TemporaryDirectory() as folder:
        contents = TokenFile(job, made.dp_rank, steps_of_file(job, calls, 1))
        opened = SharedFile(folder, f"{rig.rank}", lambda: None)
        contents.write(opened.descriptor)
    reader = TokenReader(contents, made.positions, opened, rig.device)
    take = reader.take
    taken = list[Any]()

    def wrong() -> Any:
        batches = [(inputs.clone(), labels.clone()) for inputs, labels in take()]
        taken.append(batches)
        if len(taken) == 3:
            if fault == "stale":
                return taken[1]
            if fault == "swapped":
                return [(labels, inputs) for inputs, labels in batches]
            if fault == "other order":
                return batches[::-1]
            if fault == "one token":
                batches[-1][-1][-1, -1] += 1
        return taken[0] if fault == "repeated" else batches

    if fault == "slow":
        reader.take = lambda: (time.sleep(SLOW_S), take())[1]  # type: ignore[method-assign]
    elif rig.rank == faulty_rank and fault not in ("", "overwritten"):
        reader.take = wrong  # type: ignore[method-assign]
    made.reader = reader
    for _ in range(calls):
        made()
    try:
        made.confirm(rig)
    except WrongResult as error:
        return str(error)
    rig.timed_calls = 3
    samples = made.samples(rig)
    if fault == "slow":
        return samples["token_wait"]
    return {name: len(values) for name, values in samples.items()}


def each(cases: list[tuple[Any, ...]]) -> list[Any]:
    """Of several cases in one start."""
    return [fed(*case) for case in cases]


@pytest.mark.parametrize("layouts", [("tp1",), ("dp2", "tp2", "cp2", "pp2", "dp2+zero3")], ids=["alone", "2 ranks"])
def test_a_healthy_reader_is_silent_and_what_was_timed_is_told(layouts: tuple[str, ...]) -> None:
    world_size = min(2, len(layouts))
    cases = [(layout, "", 0, 12) for layout in layouts]  # more calls than the file has steps
    assert run_ranks(world_size, each, cases) == [[{"token_wait": 3, "token_read": 3}] * len(layouts)] * world_size


def test_what_a_step_waits_for_its_tokens_is_told_call_by_call() -> None:
    (waits,) = run_ranks(1, fed, "tp1", "slow", 0)
    assert len(waits) == 3
    assert all(SLOW_S <= wait < 100 * SLOW_S for wait in waits)


ENDS = "The time of such a step is not that of training on what was read."
FAULTS = {
    "stale": "call 3 of {layout} on rank {rank} had the tokens of call 2. ",
    "repeated": "call 2 of {layout} on rank {rank} had the tokens of call 1. ",
    "swapped": "call 3 of {layout} on rank {rank} had tokens that no step has. ",
    "other order": "call 3 of {layout} on rank {rank} had tokens that no step has. ",
    "one token": "call 3 of {layout} on rank {rank} had tokens that no step has. ",
    "overwritten": "call 3 of {layout} on rank {rank}, while it computed, had tokens that no step has. ",
}


@pytest.mark.parametrize(("layout", "rank"), [("tp1", 0), ("dp2", 1)])
def test_a_reader_that_hands_out_other_tokens_is_wrong_on_every_rank(layout: str, rank: int) -> None:
    due = [words.format(layout=layout, rank=rank) + ENDS for words in FAULTS.values()]
    assert run_ranks(rank + 1, each, [(layout, fault, rank) for fault in FAULTS]) == [due] * (rank + 1)
