"""A timed step that takes its tokens from a reader: how long it waits for them, and that they are the right ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.clock import clock_for
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.job.passes import TOKEN_READ, TOKEN_WAIT
from clusterbench.parallel import Parallelism
from clusterbench.training.built_step import BuiltStep
from clusterbench.training.data import micro_batches
from clusterbench.training.step import positions_of
from clusterbench.training.token_reader import TokenReader

_OTHERS = -1.0


class FedStep:
    """Gives a step other tokens before each call, and keeps a digest of what it computed on; reads none meanwhile.

    A digest is taken before the call, when tokens have to be there, and once more behind it, as a reader must not have
    put others in their place. Three kernels each.

    Parameters
    ----------
    call
        Calls the step.
    active
        What the step was built with.

    Attributes
    ----------
    dp_rank, positions
        Whose sequences this rank is fed, and which of their tokens.
    reader
        None until there is something to be read.
    """

    def __init__(
        self, step: BuiltStep, call: Callable[[], object], active: Sequence[Parallelism], device: torch.device
    ) -> None:
        self.step, self._call, grid = step, call, step.grid
        self.dp_rank, cp_rank = (grid.rank("dp"), grid.rank("cp")) if grid else (0, 0)
        self.positions = positions_of(step.job, active, cp_rank).to(device)
        self._clock, self._marks = clock_for(device), list[object]()
        self._digests: list[Tensor] = []
        size = len(step.micro_batches) * 2 * step.micro_batches[0][0].numel()
        # odd, so that no bit of a token is lost, and unlike, so that its place counts
        self._factors = 2 * torch.arange(size, device=device).mul_(0x9E3779B97F4A7C15 - 2**64) + 1
        self.reader: TokenReader | None = None

    def __call__(self) -> None:
        assert self.reader is not None
        self._marks.append(self._clock.mark())
        self.step.micro_batches = self.reader.take()
        self._marks.append(self._clock.mark())
        self._digests.append(self._digest(self.step.micro_batches))
        self._call()
        self._digests.append(self._digest(self.step.micro_batches))

    def _digest(self, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        every = torch.stack([tokens for pair in batches for tokens in pair])
        return every.view(-1).mul_(self._factors).sum()

    def samples(self, rig: Rig) -> dict[str, list[float]]:
        """Of each timed call how long the step waited for its tokens, and how long reading them took."""
        assert self.reader is not None
        calls = rig.timed_calls or len(self.reader.read_s)
        waits = self._clock.seconds(self._marks)[::2]
        return {TOKEN_WAIT: waits[-calls:], TOKEN_READ: self.reader.read_s[-calls:]}

    def confirm(self, rig: Rig) -> None:
        """Ends the reader, and holds what every call computed on against what the seed gives for it. A collective.

        Raises
        ------
        WrongResult
            On every rank, if a call of any had other tokens.
        """
        assert self.reader is not None
        self.reader.close()
        self._clock.settle()
        seen = [int(digest) for digest in torch.stack(self._digests)]
        num_calls, num_steps = len(seen) // 2, self.reader.num_steps
        of_steps = [self._due(step) for step in range(min(num_calls, num_steps))]
        due = [of_steps[call % num_steps] for call in range(num_calls)]
        self._factors = self._factors[:0].clone()  # untimed steps show what memory they need
        call, of, wrong = next(
            (
                (call, due.index(digest) if digest in due else _OTHERS, float(seen[2 * call] == due[call]))
                for call in range(len(due))
                for digest in seen[2 * call : 2 * call + 2]
                if digest != due[call]
            ),
            (_OTHERS, _OTHERS, 0.0),
        )
        found = torch.full((rig.world_size, 3), _OTHERS, dtype=torch.float64, device=rig.device)
        found[rig.rank] = torch.tensor([float(call), float(of), wrong])
        if dist.is_initialized():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        for rank, (call, of, while_computing) in enumerate(found.tolist()):
            if call != _OTHERS:
                whose = "tokens that no step has" if of == _OTHERS else f"the tokens of call {int(of) + 1}"
                when = ", while it computed," if while_computing > 0 else ""
                raise WrongResult(
                    f"call {int(call) + 1} of {self.step.job.layout} on rank {rank}{when} had {whose}. The time of "
                    "such a step is not that of training on what was read."
                )

    def _due(self, step: int) -> int:
        return int(self._digest(micro_batches(self.step.job, self.dp_rank, self.positions, step)))
