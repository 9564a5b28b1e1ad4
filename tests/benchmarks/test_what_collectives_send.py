"""What one timed call of each collective hands over: to which ranks, how many bytes, and with what words."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clusterbench.engine.communicator import Communicator
from tests.benchmarks.test_collectives import COLLECTIVES, Faulty, prepared, rig_here, tensors
from tests.ranks import run_ranks


class Noted(Communicator):
    """Writes down what it is handed: call, ranks, dtype and bytes of its largest array, in how many memories, words."""

    def __init__(self, group, calls):
        super().__init__(group)
        for name in Faulty.outputs:
            setattr(self, name, self.noted(name, getattr(self, name), calls))

    def noted(self, name, real, calls):
        def call(*arguments):
            arrays = [[each for each in tensors(given) if torch.is_tensor(each)] for given in arguments]
            sizes = [sum(each.nbytes for each in array) for array in arrays]
            memories = {each.untyped_storage().data_ptr() for array in arrays for each in array}
            dtype = str(next(each.dtype for array in arrays for each in array)).removeprefix("torch.")
            words = [given for given in arguments if isinstance(given, (str, int))]
            calls.append((name, self._global_ranks, dtype, max(sizes), len(memories), *words))
            real(*arguments)

        return call


def _handed_over(cases):
    rig, handed = rig_here(), []
    for name, options in cases:
        calls = []
        rig.comm = Noted(None, calls)
        rig.communicator = lambda axis, calls=calls: Noted(rig.grid.group(axis), calls)
        ((_, step),) = prepared(rig, name, options)
        step.run()
        handed.append(calls)
    return handed


class Copies(TorchDispatchMode):
    """Counts copies from one array to another."""

    def __init__(self):
        super().__init__()
        self.bytes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            self.bytes.append(args[0].nbytes)
        return func(*args, **(kwargs or {}))


def _copied(cases):
    """Bytes of each copy in the timed call, once the step was proven."""
    rig, copied = rig_here(), []
    for name, options in cases:
        ((_, step),) = prepared(rig, name, options)
        step.check()
        with Copies() as copies:
            step.run()
        copied.append(copies.bytes)
    return copied


ALL = [0, 1, 2, 3]
PAIRS = {"layouts": ("dp2-tp2",)}
HANDED_OVER = [
    ("all_reduce", {"op": "max"}, lambda rank: [("all_reduce", ALL, "float32", 256, 1, "max")]),
    ("all_reduce", {"in_place": False}, lambda rank: [("all_reduce", ALL, "float32", 256, 1, "sum")]),
    ("reduce", {"op": "min", "root": 3}, lambda rank: [("reduce", ALL, "float32", 256, 1, "min", 3)]),
    ("broadcast", {"root": 2, "dtype": "bfloat16"}, lambda rank: [("broadcast", ALL, "bfloat16", 256, 1, 2)]),
    ("all_gather", {"dtype": "int8"}, lambda rank: [("all_gather", ALL, "int8", 256, 2)]),
    ("all_gather", {"in_place": True}, lambda rank: [("all_gather", ALL, "float32", 256, 1)]),
    ("reduce_scatter", {"op": "product"}, lambda rank: [("reduce_scatter", ALL, "float32", 256, 2, "product")]),
    ("reduce_scatter", {"in_place": True}, lambda rank: [("reduce_scatter", ALL, "float32", 256, 1, "sum")]),
    ("all_to_all", {"dtype": "float64"}, lambda rank: [("all_to_all", ALL, "float64", 256, 2)]),
    # rank 0 receives 16 elements from each, the others 5; every rank sends 31
    ("all_to_all_v", {}, lambda rank: [("all_to_all", ALL, "float32", 256 if rank == 0 else 124, 2)]),
    *(
        (
            name,
            {"root": 1, "in_place": in_place},
            lambda rank, name=name, memories=2 - in_place: [
                (name, ALL, "float32", 256 if rank == 1 else 64, memories if rank == 1 else 1, 1)
            ],
        )
        for name in ("gather", "scatter")
        for in_place in (False, True)
    ),
    (
        "send_recv",
        {"pattern": "stride", "stride": 3},
        lambda rank: [("send_receive", ALL, "float32", 256, 2, (rank - 3) % 4, (rank + 3) % 4)],
    ),
    (
        "hierarchical_all_reduce",
        {"op": "max"},
        lambda rank: [
            ("reduce_scatter", [rank // 2 * 2, rank // 2 * 2 + 1], "float32", 256, 2, "max"),
            ("all_reduce", [rank % 2, rank % 2 + 2], "float32", 128, 1, "max"),
            ("all_gather", [rank // 2 * 2, rank // 2 * 2 + 1], "float32", 256, 2),
        ],
    ),
    (
        "parameter_server",  # ranks 0 and 2 have a half each, and three others that send them theirs
        {"servers": 2},
        lambda rank: (
            [("exchange", ALL, "float32", 256, 1)] * 2
            if rank % 2
            else [("exchange", ALL, "float32", 384, 4), ("exchange", ALL, "float32", 384, 1)]
        ),
    ),
    (
        "all_gather",
        {**PAIRS, "axis": "tp"},
        lambda rank: [("all_gather", [rank // 2 * 2, rank // 2 * 2 + 1], "float32", 256, 2)],
    ),
    (
        "all_reduce",
        {**PAIRS, "axis": "dp", "groups": "one"},
        lambda rank: [] if rank % 2 else [("all_reduce", [0, 2], "float32", 256, 1, "sum")],
    ),
]


@pytest.mark.gloo
def test_a_timed_call_hands_over_as_many_bytes_to_the_ranks_that_its_point_says():
    cases = [(name, {**options, "min_size": 256, "max_size": 256}) for name, options, _ in HANDED_OVER]
    assert {name for name, _ in cases} == set(COLLECTIVES)
    for rank, handed in enumerate(run_ranks(4, _handed_over, cases)):
        for (name, options, expected), calls in zip(HANDED_OVER, handed, strict=True):
            assert calls == expected(rank), (name, options, rank)


@pytest.mark.gloo
def test_out_of_place_an_all_reduce_copies_what_it_reduces_and_in_place_nothing():
    cases = [("all_reduce", {"in_place": in_place, "min_size": 256, "max_size": 256}) for in_place in (False, True)]
    assert run_ranks(2, _copied, cases) == [[[256], []]] * 2
