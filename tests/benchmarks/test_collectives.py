"""All collectives: what they measure, that wrong results are caught and right ones are not, what becomes of a sweep."""

import time

import pytest
import torch

from clusterbench.benchmarks import benchmarks
from clusterbench.benchmarks._collective import ITEM_BYTES, Collective
from clusterbench.benchmarks.all_to_all_v import AllToAllV, counts_of, matrix_of, read_matrix
from clusterbench.cluster import Cluster
from clusterbench.engine.communicator import Communicator
from clusterbench.engine.rig import Rig
from clusterbench.errors import SuiteError, WrongResult
from clusterbench.layout import ParallelLayout
from clusterbench.planning import make_plan
from clusterbench.rows import Row
from clusterbench.suite import load_suite
from clusterbench.types import Case, Observation, Place
from tests.ranks import run_ranks

COLLECTIVES = {name: kind for name, kind in benchmarks().items() if issubclass(kind, Collective)}
REDUCING = [name for name, kind in COLLECTIVES.items() if "op" in kind.options()]
CPU = Place(Cluster(1, 8, "cpu"), 1)
GPUS = Place(Cluster(2, 8, "cuda", gpu_name="NVIDIA H100 80GB HBM3"), 2)


def points(name, place=CPU, **options):
    return list(benchmarks()[name].from_options(options).points(place))


def objection(name, place=CPU, **options):
    kind = benchmarks()[name].from_options(options)
    return kind.objection(next(iter(kind.points(place))), place)


def ineffective(name, place=CPU, **options):
    return dict(benchmarks()[name].from_options(options).ineffective(list(options), place))


def derived(name, point, time_s, world_size):
    case = Case("x", name, 1, point, "cpu", 1, world_size, 1, 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), [[time_s]] * world_size)
    return {metric.name: metric for metric in benchmarks()[name].derive(case, observation, CPU)}


def test_all_that_are_asked_for_are_there():
    assert set(COLLECTIVES) == {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "all_to_all_v",
        "broadcast",
        "gather",
        "hierarchical_all_reduce",
        "parameter_server",
        "reduce",
        "reduce_scatter",
        "scatter",
        "send_recv",
    }
    assert all(kind.operation == name for name, kind in COLLECTIVES.items())


# Figures


@pytest.mark.parametrize(
    ("name", "size_bytes", "n", "time_s", "algbw", "busbw"),
    [
        # The table of golden vectors: nccl-tests' factors, and two samples that NCCL Inspector has published.
        ("all_reduce", 2**30, 8, 5e-3, 214.7484, 375.8096),
        ("all_gather", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("reduce_scatter", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("all_to_all", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("all_reduce", 17_179_869_184, 8, 61_974e-6, 277.2109, 485.1191),
        ("reduce_scatter", 17_179_869_184, 8, 41_057e-6, 418.4395, 366.1345),  # 2 GiB on each rank
        ("all_reduce", 2**33, 64, 50e-3, 171.7987, 338.2287),
        ("all_reduce", 2**30, 2, 10e-3, 107.3742, 107.3742),
        ("gather", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("scatter", 2**30, 8, 5e-3, 214.7484, 187.9048),
        ("broadcast", 2**30, 8, 5e-3, 214.7484, 214.7484),
        ("reduce", 2**30, 8, 5e-3, 214.7484, 214.7484),
        ("send_recv", 2**30, 8, 5e-3, 214.7484, 214.7484),
        ("hierarchical_all_reduce", 2**30, 8, 5e-3, 214.7484, 375.8096),
        ("parameter_server", 2**30, 8, 5e-3, 214.7484, 375.8096),
        ("all_reduce", 2**30, 1, 5e-3, 214.7484, 0.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(name, size_bytes, n, time_s, algbw, busbw):
    metrics = derived(name, {"size_bytes": size_bytes, "group_size": n}, time_s, n)
    assert metrics["algbw"].value / 1e9 == pytest.approx(algbw, abs=5e-5)
    assert metrics["busbw"].value / 1e9 == pytest.approx(busbw, abs=5e-5)


def test_unequal_parts_count_the_most_that_a_rank_sends_or_receives():
    (point,) = points("all_to_all_v", matrix="skewed", imbalance=2.0, min_size=2**31, max_size=2**31)
    metrics = derived("all_to_all_v", point, 10e-3, 8)
    assert point["size_bytes"] == 2**31  # what rank 0 receives: twice its share
    assert metrics["busbw"].value == pytest.approx(2**31 / 10e-3 * 7 / 8)
    assert metrics["imbalance"].value == pytest.approx(2.0, rel=1e-6)


def test_along_an_axis_the_group_counts_and_not_the_world():
    (point,) = points("all_reduce", layouts=("dp2-tp4",), axis="tp", min_size=2**20, max_size=2**20)
    metrics = derived("all_reduce", point, 1e-3, 8)
    assert metrics["busbw"].value == pytest.approx(2**20 / 1e-3 * 2 * 3 / 4)
    assert metrics["busbw"].key == "busbw[axis=tp]"


# Sizes, groups and names


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"])
def test_an_array_of_parts_is_whole_elements_for_each_rank_and_at_least_one(name):
    sizes = [point["size_bytes"] for point in points(name, min_size=8, max_size=1000, factor=5.0)]
    assert sizes == [32, 192, 992]  # 8 and 40 B both come to one float32 on each of 8 ranks


def test_other_arrays_are_whole_elements():
    sizes = [point["size_bytes"] for point in points("all_reduce", min_size=6, max_size=30, factor=2.0)]
    assert sizes == [4, 12, 24]


def test_a_factor_near_one_gives_hundreds_of_sizes_each_once():
    sizes = [point["size_bytes"] for point in points("broadcast", max_size=2**30, factor=1.05)]
    assert 300 < len(sizes) == len(set(sizes))
    assert sizes == sorted(sizes)


def test_a_largest_size_below_the_smallest_is_a_mistake():
    with pytest.raises(SuiteError) as caught:
        points("gather", min_size=1024, max_size=8)
    assert str(caught.value) == "max_size is 8B, below min_size, 1KiB: there is nothing to measure"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_point_says_how_calls_follow_each_other_and_over_what(name):
    assert {(point["backend"], point["blocking"], point["graph"]) for point in points(name)} == {("gloo", True, False)}
    there = {(point["backend"], point["blocking"], point["graph"]) for point in points(name, GPUS, graph=True)}
    assert there == {("nccl", False, True)}


def test_labels_name_what_is_unusual():
    kind = benchmarks()["all_reduce"]
    for options, label in (
        ({}, "8B-float32"),
        ({"op": "max", "in_place": False}, "8B-float32-max-out_of_place"),
        ({"blocking": True, "graph": True}, "8B-float32-blocking-graph"),
        ({"layouts": ("dp*-tp4",), "axis": "dp", "groups": "one"}, "8B-float32-dp4-tp4-dp-one"),
    ):
        benchmark = kind.from_options(options)
        assert benchmark.label(next(iter(benchmark.points(GPUS)))) == label


def test_a_layout_gives_the_world_and_its_axis_the_group():
    kind = benchmarks()["all_gather"].from_options({"layouts": ("pp2-tp4", "tp4"), "axis": "tp", "max_size": 16})
    points = list(kind.points(CPU))
    assert [(kind.world_size(point, CPU), kind.layout(point), point["group_size"]) for point in points] == [
        (8, "pp2-tp4", 4),
        (4, "tp4", 4),
    ]


def test_nodes_are_the_groups_of_a_hierarchical_all_reduce():
    assert {point["layout"] for point in points("hierarchical_all_reduce", GPUS)} == {"dp2-tp8"}
    assert {point["layout"] for point in points("hierarchical_all_reduce", CPU)} == {"dp2-tp4"}
    assert {point["layout"] for point in points("hierarchical_all_reduce", GPUS, ranks_per_group=4)} == {"dp4-tp4"}


# What cannot be, and what would change nothing


@pytest.mark.parametrize(
    ("name", "place", "options", "why"),
    [
        ("all_reduce", CPU, {"graph": True}, "a CUDA graph needs GPUs, and these are CPU ranks"),
        ("all_reduce", CPU, {"op": "avg"}, "op avg is NCCL's; Gloo has it in some releases of torch only"),
        (
            "reduce_scatter",
            GPUS,
            {"op": "avg", "dtype": "int32"},
            "the average of whole numbers (int32) is rounded, so that no result can be checked exactly",
        ),
        (
            "reduce",
            Place(Cluster(1, 6, "cuda"), 1),
            {"op": "avg"},
            "an average over 6 ranks is rounded; only that over a power of two can be checked exactly",
        ),
        ("broadcast", CPU, {"root": 8}, "root is 8, but the ranks of a group are 0 to 7"),
        (
            "all_gather",
            CPU,
            {"layouts": ("tp8",), "axis": "dp"},
            "layout 'tp8' has no groups along dp: nothing would be sent",
        ),
        ("send_recv", Place(Cluster(1, 1, "cpu"), 1), {}, "one rank has no other rank to send to"),
        (
            "send_recv",
            CPU,
            {"pattern": "stride", "stride": 8},
            "with a stride of 8 each of 8 ranks would send to itself",
        ),
        (
            "send_recv",
            CPU,
            {"pattern": "pairs", "stride": 3},
            "8 ranks are no pairs at a distance of 3; their number must divide by 6",
        ),
        (
            "hierarchical_all_reduce",
            CPU,
            {"ranks_per_group": 3},
            "8 ranks are no groups of 3, several of them and several ranks in each",
        ),
        ("parameter_server", CPU, {"servers": 9}, "servers is 9, and a group has 8 ranks"),
        (
            "all_to_all_v",
            CPU,
            {"imbalance": 9.0},
            "imbalance is 9, but one of 8 ranks receives at most 8 times the average",
        ),
    ],
)
def test_what_cannot_be_is_said(name, place, options, why):
    assert objection(name, place, **options) == why


@pytest.mark.parametrize(
    ("name", "options", "key", "why"),
    [
        ("reduce", {"blocking": True}, "blocking", "every call of Gloo blocks, and each row says so"),
        ("gather", {"layouts": ("tp8",)}, "layouts", "without 'axis' all ranks are one group"),
        ("gather", {"axis": "tp"}, "axis", "an axis is one of a layout, and 'layouts' names none"),
        ("scatter", {"groups": "one"}, "groups", "without 'layouts' and 'axis' all ranks are one group"),
        ("send_recv", {"stride": 2}, "stride", "a ring is of neighbours; 'pattern: stride' sends further"),
        (
            "all_to_all_v",
            {"matrix": "uniform", "imbalance": 3.0},
            "imbalance",
            "it belongs to the matrix 'skewed', and the matrix is 'uniform'",
        ),
    ],
)
def test_what_would_change_nothing_is_said(name, options, key, why):
    assert ineffective(name, **options) == {key: why}


def test_in_place_is_refused_where_there_is_no_such_thing(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("suite: s\nbenchmarks:\n  - benchmark: all_to_all\n    in_place: true\n")
    with pytest.raises(SuiteError) as caught:
        load_suite(path)
    assert str(caught.value) == (
        f"{path}:4: benchmark 'all_to_all' has no option 'in_place': ranks would overwrite what they still have to "
        "send; nccl-tests has none either"
    )


def test_options_that_an_operation_lacks_are_not_among_its_own():
    assert "op" not in COLLECTIVES["all_gather"].options()
    assert "root" not in COLLECTIVES["all_reduce"].options()
    assert not {"layouts", "axis", "root"} & set(COLLECTIVES["hierarchical_all_reduce"].options())


# Traffic matrices


def test_a_skewed_matrix_sends_the_busiest_rank_its_share():
    (point,) = points("all_to_all_v", min_size=2**20, max_size=2**20, imbalance=4.0)
    counts = counts_of(matrix_of(point), point["busiest_elements"])
    received = [sum(column) for column in zip(*counts, strict=True)]
    assert received[0] * 4 == 2**20
    assert received[0] / (sum(received) / 8) == pytest.approx(4.0, rel=1e-3)
    assert len(set(received[1:])) == 1


def test_a_file_is_scaled_to_each_size_and_travels_in_the_point(tmp_path):
    path = tmp_path / "moe.csv"
    path.write_text("# tokens\n0,3\n1,2\n")
    kind = AllToAllV(matrix=str(path), min_size=20, max_size=2000, factor=10.0)
    place = Place(Cluster(1, 2, "cpu"), 1)
    points = list(kind.points(place))
    assert [(point["size_bytes"], point["traffic"]) for point in points] == [
        (20, "0,3;1,2"),
        (200, "0,3;1,2"),
        (2000, "0,3;1,2"),
    ]
    assert counts_of(matrix_of(points[1]), points[1]["busiest_elements"]) == ((0, 30), (10, 20))
    assert kind.label(points[0]) == "20B-float32-moe"
    assert kind.objection(points[0], place) is None
    (wrong, *_) = kind.points(CPU)
    assert kind.objection(wrong, CPU) == f"{path} is of 2 ranks, but 8 exchange"


def test_a_size_too_small_for_every_part_still_sends_something():
    assert counts_of(((1.0, 1.0), (1.0, 0.0)), 0) == ((1, 1), (1, 0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1,2\n3\n", "matrix '{path}', line 2: 1 numbers, but there are 2 senders"),
        ("1,2\n3,x\n", "matrix '{path}', line 2: '3,x' are not numbers of at least 0"),
        ("1,-2\n3,4\n", "matrix '{path}', line 1: '1,-2' are not numbers of at least 0"),
        ("1,nan\n3,4\n", "matrix '{path}', line 1: '1,nan' are not numbers of at least 0"),
        ("0,0\n0,0\n", "matrix '{path}' sends nothing: it holds no number above 0"),
        ("", "matrix '{path}' sends nothing: it holds no number above 0"),
    ],
)
def test_a_file_that_is_no_matrix_is_a_mistake(tmp_path, text, why):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(SuiteError) as caught:
        read_matrix(str(path))
    assert str(caught.value) == why.format(path=path)


def test_a_file_that_would_swell_every_row_is_a_mistake(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("#" * (2**18 + 1))
    with pytest.raises(SuiteError) as caught:
        read_matrix(str(path))
    assert str(caught.value) == f"matrix '{path}' has more than 256 KiB"


def test_a_word_that_is_no_matrix_is_a_mistake_of_the_suite(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("suite: s\nbenchmarks:\n  - benchmark: all_to_all_v\n    matrix: unifrom\n")
    with pytest.raises(SuiteError) as caught:
        make_plan(load_suite(path), CPU.cluster)
    assert str(caught.value) == (
        f"{path}:4: matrix is 'unifrom', which is neither 'uniform' nor 'skewed' and cannot be read as a file: "
        "No such file or directory"
    )


# On ranks


def rig_here():
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Rig(rank=rank, world_size=world_size, local_rank=rank, host="here", device=torch.device("cpu"))


def prepared(rig, name, options):
    """The step of each point that can be, with the point's label; groups are built as a worker does."""
    kind, place = benchmarks()[name].from_options(options), Place(Cluster(1, rig.world_size, "cpu"), 1)
    for point in kind.points(place):
        if kind.objection(point, place) is None:
            if (layout := kind.layout(point)) is not None:
                rig.build_grid(ParallelLayout.parse(layout), str(point.get("rank_order", "megatron")))
            yield kind.label(point), kind.prepare(rig, point)


def _all_verified(cases):
    rig, verified = rig_here(), []
    for name, options in cases:
        for label, step in prepared(rig, name, options):
            evidence = [step.check()]
            step.run()
            step.run()
            evidence.append(step.check())  # what was timed leaves nothing behind that hides a wrong result
            verified.append((name, label, evidence))
    return verified


def everything(world_size):
    cases = []
    odd = {"min_size": 8, "max_size": 70_000, "factor": 91.3}
    for name in COLLECTIVES:
        cases.append((name, odd))
        cases += [(name, {"dtype": dtype, "min_size": 999, "max_size": 999}) for dtype in ITEM_BYTES]
    small = {"min_size": 4 * 77, "max_size": 4 * 77}
    for name in REDUCING:
        for op in ("max", "min", "product"):
            cases += [(name, {**small, "op": op, "dtype": dtype}) for dtype in ("bfloat16", "uint8")]
    for name, kind in COLLECTIVES.items():
        if "in_place" in kind.options():
            cases += [(name, {**small, "in_place": in_place}) for in_place in (True, False)]
        if "root" in kind.options():
            cases.append((name, {**small, "root": world_size - 1}))
    cases += [("send_recv", {**small, "pattern": pattern, "stride": 1}) for pattern in ("stride", "pairs")]
    cases += [("send_recv", {**small, "pattern": "stride", "stride": 2})]
    cases += [("parameter_server", {**small, "servers": servers}) for servers in (2, world_size)]
    cases += [("all_to_all_v", {**small, "matrix": "uniform"}), ("all_to_all_v", {**small, "imbalance": 1.7})]
    if world_size % 2 == 0:
        for axis in ("tp", "dp"):
            for groups in ("all", "one"):
                grouped = {**small, "layouts": ("dp*-tp2",), "axis": axis, "groups": groups}
                cases += [(name, grouped) for name, kind in COLLECTIVES.items() if "axis" in kind.options()]
    return cases


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
def test_every_collective_is_proven_in_every_dtype_at_odd_sizes(world_size):
    ranks = run_ranks(world_size, _all_verified, everything(world_size), timeout_s=240)
    right = [{"wrong_elements": 0.0}] * 2
    assert {name for name, _, _ in ranks[0]} >= set(COLLECTIVES) - {"hierarchical_all_reduce"}
    assert ("hierarchical_all_reduce" in {name for name, _, _ in ranks[0]}) == (world_size in (4, 8))
    for number, verified in enumerate(zip(*ranks, strict=True)):
        name, label, _ = verified[0]
        results = [evidence for _, _, evidence in verified]
        # Only the root has a result of gather and reduce; a rank outside the one group has none.
        assert all(result in (right, [{}, {}]) for result in results), (number, name, label)
        assert right in results, (name, label)
        if name not in ("gather", "reduce") and "-one" not in label:
            assert results == [right] * world_size, (name, label)


class Faulty(Communicator):
    """A group in which one rank's part is lost, two halves of a result are swapped, or its last element is left out.

    ``outputs`` and ``inputs`` are the positions of a method's tensors.
    """

    outputs = dict.fromkeys(
        ("all_reduce", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"), 0
    ) | {"send_receive": 0, "broadcast": 0, "exchange": 1}
    inputs = dict.fromkeys(("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"), 1) | {
        "all_reduce": 0,
        "reduce": 0,
        "broadcast": 0,
        "send_receive": 2,
        "exchange": 0,
    }

    def __init__(self, group, fault):
        super().__init__(group)
        for name in self.outputs:
            setattr(self, name, self.broken(name, getattr(self, name), fault))

    def broken(self, name, real, fault):
        def call(*arguments):
            given, got = tensors(arguments[self.inputs[name]]), tensors(arguments[self.outputs[name]])
            before = [tensor.clone() for tensor in got]
            if fault == "lost" and self.rank == (0 if name in ("broadcast", "scatter") else 1):
                for tensor in given:
                    tensor.zero_()
            real(*arguments)
            if fault == "tail" and got and len(got[-1]):
                got[-1][-1] = before[-1][-1]
            if fault == "swapped" and got:
                first, second = (got[0], got[1]) if len(got) > 1 else got[0].tensor_split([len(got[0]) // 2])
                numel = min(len(first), len(second))
                kept = first[:numel].clone()
                first[:numel] = second[:numel]
                second[:numel] = kept

        return call


def tensors(argument):
    several = list(argument) if isinstance(argument, (list, tuple)) else [argument]
    return [each[0] if isinstance(each, tuple) else each for each in several]  # of exchange with a rank each


def _caught(cases, fault):
    rig, caught = rig_here(), []
    rig.comm = Faulty(None, fault)
    rig.communicator = lambda axis: Faulty(rig.grid.group(axis), fault)
    for name, options in cases:
        for _, step in prepared(rig, name, options):
            try:
                step.check()
                caught.append("")
            except WrongResult as error:
                caught.append(str(error))
    return caught


@pytest.mark.gloo
@pytest.mark.parametrize("fault", ["lost", "swapped", "tail"])
@pytest.mark.parametrize("size_bytes", [4 * 16, 4 * 1001])
def test_a_communicator_that_loses_swaps_or_leaves_out_is_caught(fault, size_bytes):
    cases = [(name, {"min_size": size_bytes, "max_size": size_bytes}) for name in COLLECTIVES]
    ranks = run_ranks(4, _caught, cases, fault)
    for (name, _), of_ranks in zip(cases, zip(*ranks, strict=True), strict=True):
        assert any(f"{name} gave wrong results on rank " in error for error in of_ranks), name


LOST_ON = {"broadcast": 0b1111, "scatter": 0b1111, "gather": 0b0001, "reduce": 0b0001, "send_recv": 0b0100}
"""Ranks that get less where what rank 1 gives is lost, of a root what rank 0 gives; of the others all."""


@pytest.mark.gloo
def test_every_rank_that_got_less_says_so():
    cases = [(name, {"min_size": 256, "max_size": 256}) for name in COLLECTIVES]
    ranks = run_ranks(4, _caught, cases, "lost")
    said = {
        name: sum(bool(error) << rank for rank, error in enumerate(of_ranks))
        for (name, _), of_ranks in zip(cases, zip(*ranks, strict=True), strict=True)
    }
    assert said == {name: LOST_ON.get(name, 0b1111) for name in COLLECTIVES}


def _caught_behind_the_clock(cases):
    """What is said of a group that sends nothing from the second call on."""
    rig, caught = rig_here(), []
    for name, options in cases:
        rig.comm = Once()
        rig.communicator = lambda axis: Once(rig.grid.group(axis))
        for _, step in prepared(rig, name, options):
            step.check()
            Once.sends = False
            step.run()
            try:
                step.confirm(True)
                caught.append("")
            except WrongResult as error:
                caught.append(str(error))
            Once.sends = True
    return caught


class Once(Communicator):
    sends = True

    def __init__(self, group=None):
        super().__init__(group)
        for name in Faulty.outputs:
            setattr(self, name, self.once(getattr(self, name)))

    def once(self, real):
        return lambda *arguments: real(*arguments) if Once.sends else None


@pytest.mark.gloo
def test_a_call_that_sends_nothing_once_it_was_proven_is_caught_behind_the_clock():
    cases = [(name, {"min_size": 64, "max_size": 64}) for name in COLLECTIVES]
    ranks = run_ranks(4, _caught_behind_the_clock, cases)
    for (name, _), of_ranks in zip(cases, zip(*ranks, strict=True), strict=True):
        assert any(f"{name} gave wrong results on rank " in error for error in of_ranks), name


def _tail_of_an_all_gather():
    return _caught([("all_gather", {"min_size": 48, "max_size": 48})], "tail")


@pytest.mark.gloo
def test_what_was_left_unwritten_is_counted_and_located():
    first, *_ = run_ranks(3, _tail_of_an_all_gather)[1]
    assert first == (
        "all_gather gave wrong results on rank 1 (host here): 1 of 12 elements differ. "
        "First at index 11: got 127.0, expected 20.0."
    )


@pytest.mark.gloo
@pytest.mark.timeout(300)
def test_hundreds_of_sizes_on_eight_ranks_cost_one_start(tmp_path):
    from clusterbench.cli import main

    path, out = tmp_path / "s.yaml", tmp_path / "run"
    path.write_text(
        "suite: s\nbenchmarks:\n"
        "  - {benchmark: broadcast, max_size: 8KiB, factor: 1.03, dtype: uint8, iterations: 1, warmup: 0}\n"
        "cpu: {num_ranks: 8}\n"
    )
    main(["run", str(path), "--device", "cpu", "--out", str(out)], standalone_mode=False)
    outcomes = (out / "outcomes.jsonl").read_text().splitlines()
    assert len(outcomes) > 200
    assert all('"status":"ok"' in line.replace(" ", "") for line in outcomes)
    assert len(list((out / "logs").glob("*rank*"))) == 8  # a file for each rank of each start


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("manner", [{}, {"graph": True}, {"blocking": True}, {"graph": True, "blocking": True}])
def test_on_a_gpu_calls_and_replayed_graphs_are_proven(manner, tmp_path):
    import torch.distributed as dist

    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, device_id=device)
    try:
        rig = Rig(rank=0, world_size=1, local_rank=0, host="here", device=device)
        place = Place(Cluster(1, 1, "cuda"), 1)
        proven = set()
        for name in COLLECTIVES:
            kind = benchmarks()[name].from_options({"min_size": 4096, "max_size": 4096, **manner})
            for point in kind.points(place):
                if kind.objection(point, place) is None:
                    step = kind.prepare(rig, point)
                    assert step.check() == {"wrong_elements": 0.0}, name
                    step.run()
                    torch.cuda.synchronize()
                    del step  # no graph may outlive the group it was captured with
                    proven.add(name)
        assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"} <= proven
    finally:
        dist.destroy_process_group()


# Sweeps


def sweep(name, time_of, num_sizes=12, factor=4, **options):
    """The latency rows of a sweep on 8 ranks."""
    kind = benchmarks()[name].from_options(
        {"max_size": 8 * factor ** (num_sizes - 1), "factor": float(factor), **options}
    )
    for point in kind.points(CPU):
        yield Row(
            "r", f"{name}/{kind.label(point)}", name, 1, "ok", point, 1, 8, "a", "cpu", "latency", "s",
            time_of(point["size_bytes"]), 0.0, 1.0, 20,
        )  # fmt: skip


def figures(rows, metric):
    return [(row.case, row.detail.get("part"), row.value, row.basis) for row in rows if row.metric == metric]


def test_a_sweep_has_its_latency_peak_half_and_line():
    rows = list(sweep("broadcast", lambda size: 20e-6 + size / 2e9))
    derived = list(COLLECTIVES["broadcast"].across(rows))
    largest, reached = 2**25, 2**25 / (20e-6 + 2**25 / 2e9)
    assert figures(derived, "latency_floor") == [
        ("broadcast/8B-float32", None, 20e-6 + 8 / 2e9, "at 8B, the smallest size")
    ]
    ((case, _, peak, basis),) = figures(derived, "peak_busbw")
    assert (case, basis) == ("broadcast/32MiB-float32", "at 32MiB, of 8B to 32MiB")
    assert peak == pytest.approx(reached)
    ((_, _, half, basis),) = figures(derived, "half_peak_size")
    assert half == pytest.approx(40e3, rel=0.1)  # alpha times beta: n-half of a straight line
    assert basis == "between measured sizes by their logarithms; the peak is 2.0 GB/s"
    ((case, part, alpha, basis),) = figures(derived, "alpha")
    assert (case, part) == ("broadcast/8B-float32", "segment 1")
    assert basis == "1 of 1: alpha + size / beta through 12 sizes, 8B to 32MiB"
    assert alpha == pytest.approx(20e-6)
    assert figures(derived, "beta")[0][2] == pytest.approx(2e9)
    assert figures(derived, "fit_error")[0][2] < 1e-9
    assert largest == rows[-1].point["size_bytes"]


def test_the_peak_is_that_of_the_bus_and_in_the_middle_of_a_sweep_where_it_is_there():
    """8 ranks: 2 * 7 / 8 of 2**23 B in 4 ms, 3.67 GB/s; from 512 KiB on half of that."""
    rows = list(sweep("all_reduce", lambda size: 4e-3 if size <= 2**23 else size / 1e9, 12))
    derived = list(COLLECTIVES["all_reduce"].across(rows))
    ((case, _, peak, basis),) = figures(derived, "peak_busbw")
    assert (case, basis) == ("all_reduce/8MiB-float32", "at 8MiB, of 8B to 32MiB")
    assert peak == pytest.approx(3.670016e9)


def test_each_segment_of_a_switch_has_its_own_line():
    rows = list(sweep("send_recv", lambda s: 5e-6 + s / 1e9 if s < 70_000 else 50e-6 + s / 20e9, 26, 2))
    derived = list(COLLECTIVES["send_recv"].across(rows))
    assert [(case, part, round(1e6 * value)) for case, part, value, _ in figures(derived, "alpha")] == [
        ("send_recv/8B-float32", "segment 1", 5),
        ("send_recv/128KiB-float32", "segment 2", 50),
    ]
    assert [round(value / 1e9) for _, _, value, _ in figures(derived, "beta")] == [1, 20]


def test_sweeps_that_differ_in_an_option_are_apart():
    rows = [*sweep("reduce", lambda size: 1e-5), *sweep("reduce", lambda size: 2e-5, op="max")]
    derived = list(COLLECTIVES["reduce"].across(rows))
    assert sorted(value for _, _, value, _ in figures(derived, "latency_floor")) == [1e-5, 2e-5]


def test_ring_and_tree_stand_beside_by_the_links_that_send_recv_found():
    rows = [*sweep("all_reduce", lambda size: 1e-4), *sweep("send_recv", lambda size: 10e-6 + size / 2e9)]
    derived = figures(COLLECTIVES["all_reduce"].across(rows), "model_latency")
    assert len(derived) == 2 * 12
    case, part, value, basis = derived[-2]
    assert (case, part) == ("all_reduce/32MiB-float32", "ring")
    assert value == pytest.approx(14 * (10e-6 + 2**25 / 8 / 2e9))
    assert basis == (
        "links with alpha 10.00 us and beta 2.0 GB/s, fitted to send_recv; Thakur et al. 2005, Sanders et al. 2009"
    )


def test_a_link_has_the_latency_of_small_messages_and_the_rate_of_large_ones():
    """Of messages below 70 kB 5 us and 1 GB/s, beyond 50 us and 20 GB/s; 2 (n - 1) steps of a ring of 8."""
    hops = sweep("send_recv", lambda s: 5e-6 + s / 1e9 if s < 70_000 else 50e-6 + s / 20e9, 26, 2)
    rows = [*sweep("all_reduce", lambda size: 1e-4), *hops]
    derived = figures(COLLECTIVES["all_reduce"].across(rows), "model_latency")
    (of_ring,) = [value for case, part, value, _ in derived if (case, part) == ("all_reduce/32MiB-float32", "ring")]
    assert of_ring == pytest.approx(14 * (5e-6 + 2**25 / 8 / 20e9), rel=0.01)


def test_messages_that_pass_no_ring_say_nothing_of_its_links():
    across = sweep("send_recv", lambda size: 10e-6 + size / 2e9, pattern="pairs", stride=4)
    rows = [*sweep("all_reduce", lambda size: 1e-4), *across]
    ((_, _, value, _),) = figures(COLLECTIVES["all_reduce"].across(rows), "model_latency")
    assert value is None


def test_a_sweep_is_of_one_number_of_ranks_and_in_the_order_of_sizes():
    rows = [*sweep("reduce", lambda size: 1e-5 + size / 1e9)]
    of_four = [row._replace(world_size=4, value=row.value / 2) for row in rows]
    derived = list(COLLECTIVES["reduce"].across([*rows[::-1], *of_four[::-1]]))
    assert sorted(value for _, _, value, _ in figures(derived, "latency_floor")) == [
        pytest.approx(0.5e-5, rel=1e-2),
        pytest.approx(1e-5, rel=1e-2),
    ]
    assert {basis for *_, basis in figures(derived, "latency_floor")} == {"at 8B, the smallest size"}


def test_without_send_recv_no_model_is_guessed():
    derived = figures(COLLECTIVES["all_reduce"].across(list(sweep("all_reduce", lambda size: 1e-4))), "model_latency")
    assert derived == [
        (
            "all_reduce/8B-float32",
            None,
            None,
            "no ring of send_recv with a bandwidth was measured on these ranks in this run",
        )
    ]


def test_three_sizes_are_no_line():
    derived = list(COLLECTIVES["gather"].across(list(sweep("gather", lambda size: 1e-4, 5, 8, max_size=2048))))
    assert figures(derived, "alpha") == [
        ("gather/32B-float32", None, None, "3 sizes were measured, and a line through fewer than 4 says nothing")
    ]


def test_one_size_alone_is_no_sweep():
    assert list(COLLECTIVES["gather"].across(list(sweep("gather", lambda size: 1e-4, 1)))) == []


def test_twenty_thousand_cases_take_seconds():
    one_sweep = list(sweep("all_reduce", lambda size: 10e-6 + size / 1e9, 30, 2))
    rows = [
        row._replace(point={**row.point, "NCCL_VARIABLE": str(number)}, value=row.value * (1 + number / 1e4))
        for number in range(670)
        for row in one_sweep
    ]
    assert len(rows) > 20_000
    start_s = time.perf_counter()
    derived = list(COLLECTIVES["all_reduce"].across(rows))
    assert len(figures(derived, "latency_floor")) == 670
    assert time.perf_counter() - start_s < 120  # and not the minutes of comparing all with all
