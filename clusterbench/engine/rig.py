"""What a worker hands a benchmark: device, communicators, mesh, allocation, checks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property

import psutil
import torch
import torch.distributed as dist

from clusterbench.engine.communicator import Communicator
from clusterbench.engine.compat import store_of_ranks
from clusterbench.engine.fake_group import fake_group
from clusterbench.engine.grid import Grid
from clusterbench.errors import LaunchError, WrongResult
from clusterbench.layout import ParallelLayout

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
}

LARGEST_EXACT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "int8": 2**7 - 1, "uint8": 2**8 - 1}
"""Up to here every whole number is exact; the other dtypes go beyond any number of ranks."""

UNWRITTEN = 127
"""What a buffer holds that a collective is to fill: in every dtype, and in no block."""

Pieces = Sequence[tuple[int, torch.Tensor]]
"""What stands in an array, from its start: so many elements of a tile that is repeated, then of the next."""

_PERIOD = 521  # a prime: blocks of no size one would choose begin at the same place of a tile
_BLOCK_VALUES = 113
_LARGEST_EXTRA = 7
_COMPARED_AT_ONCE = 2**26
_CALLS_BEFORE_CAPTURE = 3
_LONGEST_WORD = 256


class Rig:
    """One rank of one case.

    Attributes
    ----------
    rank, world_size, local_rank, host
        Of the case; ``host`` and ``rank`` stand in the messages of failed checks.
    device
        Where this rank allocates.
    grid
        The ranks as the case's layout sees them; None where the benchmark asked for none.
    own_steps
        In how many steps of the case under way each rank's own work is recorded, at least.
    asked_calls
        Of what is timed, warm-up included, as the case under way asks for them; there may be more.
    made_calls, timed_calls
        As many as were made of it in fact, once it was timed, and those among them that the clock ran for, which came
        last; 0 before.
    asks_one_rank
        Whether the case under way is to be computed on one rank, too.
    asks_gradients
        Whether the first call may be looked at: of the first repeat, where it is not timed.
    most_spans
        How much of what ran when on this rank is kept of its traced step: nothing of most ranks of many.
    """

    def __init__(self, *, rank: int, world_size: int, local_rank: int, host: str, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.host = host
        self.device = device
        self.grid: Grid | None = None
        self.own_steps = 1
        self.asked_calls = self.made_calls = self.timed_calls = 0
        self.asks_one_rank = False
        self.asks_gradients = False
        self.most_spans = 0
        self._built: tuple[ParallelLayout, str] | None = None
        self._groups: dict[tuple[int, ...], Communicator | None] = {}
        self._alone = ExitStack()

    @cached_property
    def comm(self) -> Communicator:
        """All ranks of the case."""
        return Communicator()

    def build_grid(self, layout: ParallelLayout, rank_order: str) -> None:
        """Mesh and groups of ``layout``; a collective, as creating groups is.

        Cases of one start with the same layout share them: NCCL keeps memory and connections for every group.
        """
        if self._built != (layout, rank_order):
            self.grid = Grid(layout, rank_order, self.device.type)
            self._built = layout, rank_order

    def be_one_of(self, layout: ParallelLayout, rank: int, rank_order: str) -> Grid:
        """Makes this process, the only one of its case, a rank of ``layout`` whose others are not there.

        It stays one until it ends: from now on every collective returns at once, and nothing is sent.
        """
        assert self.world_size == 1, "the other ranks would wait for this one"
        self.__dict__.pop("comm", None)  # of a group that is left
        dist.destroy_process_group()
        self._alone.enter_context(fake_group(rank, layout.world_size, self.device.type, has_data=True))
        self.build_grid(layout, rank_order)
        assert self.grid is not None
        return self.grid

    def communicator(self, axis: str) -> Communicator:
        """The ranks of this one's group along an axis of the case's layout."""
        assert self.grid is not None, "the case has no layout"
        return Communicator(self.grid.group(axis))

    def group_of(self, groups: Sequence[Sequence[int]]) -> Communicator | None:
        """This rank's of some groups of ranks that have none in common; None where it is in none of them.

        A collective of all ranks when first asked for these groups, as making a group is. Later cases of the start
        share them: NCCL keeps memory and connections for every group.
        """
        for ranks in map(tuple, groups):
            if ranks not in self._groups:
                group = dist.new_group(list(ranks))
                self._groups[ranks] = Communicator(group) if self.rank in ranks else None
        mine = [self._groups[tuple(ranks)] for ranks in groups if self.rank in ranks]
        return mine[0] if mine else None

    def count(self, name: str, more: int = 0) -> int:
        """What ranks have counted under a name so far, with ``more`` of this one.

        At the store where they met, so beside what is under test; waits for no other rank. A start's cases share it:
        look at what is added, not at the whole.
        """
        return int(store_of_ranks().add(f"clusterbench/{name}", more))

    @property
    def address(self) -> str:
        """Where the other ranks reach this host: on Gloo's interface, or its own where all are on one; IPv4 first."""
        name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        entries = psutil.net_if_addrs().get(name, ())
        addresses = [
            entry.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for entry in entries
            if entry.family == family and not entry.address.startswith("fe80:")  # which holds for one link only
        ]
        if not addresses:
            raise LaunchError(f"interface {name} of {self.host} has no address")
        return addresses[0]

    def tell(self, text: str, root: int) -> str:
        """The text of rank ``root``, on every rank; a collective."""
        word = torch.zeros(_LONGEST_WORD, dtype=torch.uint8, device=self.device)
        if self.rank == root:
            data = text.encode()
            word[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.comm.broadcast(word, root)
        return bytes(word.tolist()).rstrip(b"\0").decode()

    def host_max(self, value: float) -> float:
        """The largest of all ranks' values, over the group of the hosts: a GPU's work goes on beside it."""
        largest = torch.tensor(value, dtype=torch.float64)
        self.comm.all_reduce(largest, "max")
        return float(largest)

    def host_tell(self, values: Sequence[float], count: int) -> list[float]:
        """The ``count`` values of rank 0, on every rank, over the group of the hosts; the others' are not looked at."""
        told = torch.tensor(values if self.rank == 0 else [0.0] * count, dtype=torch.float64)
        self.comm.broadcast(told)
        return [float(value) for value in told]

    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[name]

    def empty(self, numel: int, dtype: str) -> torch.Tensor:
        """Uninitialised memory of ``numel`` elements."""
        return torch.empty(numel, dtype=DTYPES[dtype], device=self.device)

    def full(self, numel: int, dtype: str, value: float) -> torch.Tensor:
        """``numel`` elements of ``value``."""
        return torch.full((numel,), value, dtype=DTYPES[dtype], device=self.device)

    def operands(self, op: str, dtype: str, rank: int, num_ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a rank gives to a reduction, and the result: two tiles, exact in every dtype and in any order.

        Each element has one rank that gives ``e``, a small number which varies with its place. The others give 1 to a
        sum, an average or a maximum, 100 to a minimum and -1 to a product. So what is lost, doubled or misplaced shows;
        of a maximum or a minimum what is lost shows where that rank decides. Where so many ones are no longer exact
        (bfloat16 beyond 249 ranks) the others give 0 to a sum.
        """
        place = torch.arange(_PERIOD * num_ranks, device=self.device)
        extra = 2 + (193 * place * place + 71 * place + place // num_ranks) % _PERIOD % (_LARGEST_EXTRA - 1)
        owned = place % num_ranks == rank
        if op in ("sum", "avg"):
            common = 1 if num_ranks + _LARGEST_EXTRA <= LARGEST_EXACT.get(dtype, 2**53) else 0
            mine, whole = common + extra * owned, common * num_ranks + extra
            if op == "avg":
                return mine.to(DTYPES[dtype]), whole.double().div(num_ranks).to(DTYPES[dtype])
        elif op == "product":
            mine, whole = torch.where(owned, extra, -1), extra * (-1) ** (num_ranks - 1)
        else:
            mine, whole = torch.where(owned, extra, 1 if op == "max" else 100), extra
        return mine.to(DTYPES[dtype]), whole.to(DTYPES[dtype])

    def block(self, dtype: str, number: int) -> torch.Tensor:
        """The tile of block ``number``: values from 0 to 112, other ones in every block, exact in every dtype."""
        place = torch.arange(_PERIOD, device=self.device)
        values = number + (place * place + 3 * place) % _PERIOD * (1 + number // _BLOCK_VALUES)
        return (values % _BLOCK_VALUES).to(DTYPES[dtype])

    def write(self, array: torch.Tensor, pieces: Pieces) -> None:
        """Fills ``array`` with tiles."""
        start = 0
        for numel, tile in pieces:
            _repeat_into(array[start : start + numel], tile)
            start += numel
        assert start == len(array), f"pieces of {start} elements for an array of {len(array)}"

    def forget(self, array: torch.Tensor) -> None:
        """Writes into what a collective is to fill a value that no block has."""
        array.fill_(UNWRITTEN)

    def expect(self, what: str, got: torch.Tensor, pieces: Pieces) -> dict[str, float]:
        """Compares every element with what :meth:`write` would have written. Messages are those of a whole array.

        Raises
        ------
        WrongResult
            As :meth:`expect_equal`.
        """
        return self.expect_stretches(what, got.numel(), _compared(got, pieces))

    def expect_equal(self, what: str, got: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
        """Compares every element, and counts and locates those that differ.

        Returns
        -------
        ``{"wrong_elements": 0.0}``, the evidence of a right result.

        Raises
        ------
        WrongResult
            With count, first index, both values, rank and host.
        """
        pairs = [(0, got.flatten(), expected.expand_as(got).flatten())]
        return self.expect_stretches(what, got.numel(), pairs)

    def expect_stretches(
        self, what: str, numel: int, pairs: Iterable[tuple[int, torch.Tensor, torch.Tensor]]
    ) -> dict[str, float]:
        """Compares every element of an array that comes in consecutive stretches.

        Parameters
        ----------
        numel
            Of the whole array.
        pairs
            Index of a stretch's first element, what was got and what was expected, both flat.

        Raises
        ------
        WrongResult
            As :meth:`expect_equal`.
        """
        wrong, first = 0, ""
        for start, got, expected in pairs:
            differs = (got != expected) | got.isnan() if got.is_floating_point() else got != expected
            if count := int(differs.sum()):
                if not wrong:
                    index = int(differs.nonzero()[0])
                    first = f"{start + index}: got {got[index].item()}, expected {expected[index].item()}."
                wrong += count
        if wrong:
            raise WrongResult(
                f"{what} gave wrong results on rank {self.rank} (host {self.host}): {wrong} of {numel} elements "
                f"differ. First at index {first}",
                {"wrong_elements": float(wrong)},
            )
        return {"wrong_elements": 0.0}

    def capture(self, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """A CUDA graph of one ``call``, after some calls on a side stream, as torch's notes on graphs ask for.

        Communicates where ``call`` does. Other threads may go on: NCCL's watchdog looks at events meanwhile.
        """
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_CALLS_BEFORE_CAPTURE):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()
        return graph


def from_place(tile: torch.Tensor, start: int) -> torch.Tensor:
    """The tile rotated so that it continues at element ``start`` of the array that it is repeated in."""
    return tile.roll(-(start % len(tile)))


def _repeat_into(array: torch.Tensor, tile: torch.Tensor) -> None:
    whole = len(array) // len(tile) * len(tile)
    array[:whole].view(-1, len(tile)).copy_(tile)
    array[whole:].copy_(tile[: len(array) - whole])


def _compared(got: torch.Tensor, pieces: Pieces) -> Iterable[tuple[int, torch.Tensor, torch.Tensor]]:
    """Stretches of bounded length: beside an array of half the memory there is no room for a second."""
    end = 0
    for numel, tile in pieces:
        start, end = end, end + numel
        step = max(_COMPARED_AT_ONCE // len(tile), 1) * len(tile)
        expected = tile.repeat(-(-min(step, numel) // len(tile)))
        for at in range(start, end, step):
            part = got[at : min(at + step, end)]
            yield at, part, expected[: len(part)]
    assert end == len(got), f"pieces of {end} elements for an array of {len(got)}"
