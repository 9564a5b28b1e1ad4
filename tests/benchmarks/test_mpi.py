import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterbench import own_copy
from clusterbench.benchmarks import mpi
from clusterbench.benchmarks.mpi import BARRIER, IN_PARTS, OF_PAIRS, WHOLE, Mpi
from clusterbench.cluster import Cluster
from clusterbench.engine import tool
from clusterbench.errors import LaunchError, NotHere, SuiteError, ToolError, WrongResult
from clusterbench.formulas.collectives import BUS_FACTOR
from clusterbench.types import Case, Observation, Place

FOUR = Place(Cluster(1, 4, "cpu"), 1)
NODES = Place(Cluster(3, 8, "cuda"), 3)


def derived(op, size_bytes, world_size, *iterations):
    point = {"op": op, "size_bytes": size_bytes, "dtype": "float32", "memory": "host", "sender": None, "receiver": None}
    case = Case("x", "mpi", 1, point, "cpu", 1, world_size, len(iterations), 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), [list(rank) for rank in zip(*iterations, strict=True)])
    return {metric.name: metric.value for metric in Mpi.derive(case, observation, FOUR)}


# What follows from what was seen


def test_bandwidths_of_collectives_are_those_of_nccl_tests():
    # 1 GiB over 8 ranks in 5 ms, by the factors of nccl-tests' doc/PERFORMANCE.md.
    assert derived("all_reduce", 2**30, 8, [5e-3] * 8)["busbw"] == pytest.approx(375.8096e9, rel=1e-6)
    for op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert derived(op, 2**30, 8, [5e-3] * 8)["busbw"] == pytest.approx(187.9048e9, rel=1e-6)
    for op in ("broadcast", "reduce"):
        assert derived(op, 2**30, 8, [5e-3] * 8)["busbw"] == pytest.approx(214.7484e9, rel=1e-6)


def test_a_collective_takes_as_long_as_its_slowest_rank():
    assert derived("all_reduce", 2**20, 2, [1.0, 3.0], [5.0, 2.0], [4.0, 4.0])["latency"] == 4.0


def test_latency_is_half_a_round_trip():
    assert derived("latency", 8, 2, [3e-6, 3e-6]) == {"latency": 1.5e-6}


def test_bandwidth_is_that_of_64_messages_and_of_both_ways_the_sum():
    assert derived("bandwidth", 2**20, 2, [0.5, 0.5]) == {"bandwidth": 128 * 2**20, "message_rate": 128}
    assert derived("bi_bandwidth", 2**20, 2, [0.5, 0.5]) == {"bandwidth": 256 * 2**20, "message_rate": 256}


def test_a_barrier_has_a_latency_only():
    assert derived(BARRIER, None, 2, [0.5, 0.25]) == {"latency": 0.5}


def test_every_collective_has_a_bus_factor():
    assert {*WHOLE, *IN_PARTS} <= BUS_FACTOR.keys()


# What is asked


def sizes(place, **options):
    return [point["size_bytes"] for point in Mpi(**options).points(place)]


def test_parts_are_rounded_down_to_whole_elements_and_never_to_none():
    three = Place(Cluster(1, 3, "cpu"), 1)
    assert sizes(three, op="all_gather", min_size=8, max_size=8000, factor=10) == [12, 72, 792, 7992]
    assert sizes(three, op="all_reduce", min_size=8, max_size=8000, factor=10) == [8, 80, 800, 8000]


def test_sizes_that_are_one_after_rounding_are_measured_once():
    assert sizes(NODES, op="all_gather", min_size=8, max_size=128, factor=4) == [96]


def test_pairs_are_neighbours_on_the_way_through_the_nodes():
    pairs = [(point["sender"], point["receiver"]) for point in Mpi(op="latency", max_size=8).points(NODES)]
    assert pairs == [(0, 8), (8, 16)]


def test_pairs_are_those_that_are_asked_for():
    def between(which: str) -> list[tuple[object, object]]:
        points = Mpi(op="latency", max_size=8, pairs=which).points(NODES)
        return [(point["sender"], point["receiver"]) for point in points]

    assert between("all") == [(0, 8), (0, 16), (8, 16)]
    assert between("first") == [(0, 8)]
    assert list(Mpi(op="reduce").ineffective(["pairs"], NODES)) == [("pairs", "the operation is over all ranks")]
    assert list(Mpi(op="latency").ineffective(["pairs"], NODES)) == []


def test_labels_name_what_is_called_how_much_and_between_whom():
    label = Mpi().label
    assert [label(point) for point in Mpi(op="bandwidth", max_size=8).points(FOUR)] == ["bandwidth-8B-float32-0to1"]
    assert [label(point) for point in Mpi(op="reduce", max_size=8, memory="cuda").points(FOUR)] == [
        "reduce-8B-float32-cuda"
    ]
    assert [label(point) for point in Mpi(op=BARRIER).points(FOUR)] == ["barrier"]


@pytest.mark.parametrize(
    ("options", "place", "expected"),
    [
        (
            {"op": "latency", "max_size": 8},
            Place(Cluster(1, 1, "cpu"), 1),
            "latency is measured between two ranks, and there is one",
        ),
        ({"memory": "cuda", "max_size": 8}, FOUR, "CPU ranks have no CUDA memory: write memory: host"),
        (
            {"min_size": 6, "max_size": 6},
            FOUR,
            "a size of 6 B is not a whole number of float32 elements of 4 B",
        ),
        ({"min_size": 8, "max_size": 8}, FOUR, None),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options, place, expected):
    benchmark = Mpi(**options)
    (point,) = benchmark.points(place)
    assert benchmark.objection(point, place) == expected


def test_a_largest_size_below_the_smallest_is_a_mistake():
    with pytest.raises(SuiteError) as caught:
        Mpi(min_size=1024, max_size=8)
    assert str(caught.value) == "max_size is 8B, below min_size, 1KiB: there is nothing to measure"


def test_a_barrier_has_no_size():
    assert list(Mpi(op=BARRIER).ineffective(["op", "max_size"], FOUR)) == [("max_size", "a barrier moves no data")]
    assert list(Mpi(op="reduce").ineffective(["op", "max_size"], FOUR)) == []


def test_time_limits_grow_with_what_an_iteration_moves():
    per_message = {"all_reduce": 1, "latency": 2, "bandwidth": 64, "bi_bandwidth": 128}
    for op, messages in per_message.items():
        (point,) = Mpi(op=op, min_size=1000, max_size=1000).points(FOUR)
        assert Mpi.size_bytes(point) == 1000 * messages
    assert [Mpi.size_bytes(point) for point in Mpi(op=BARRIER).points(FOUR)] == [0]
    assert OF_PAIRS == ("latency", "bandwidth", "bi_bandwidth")


# A plain run, whose worker has an mpirun prove and time


class Rig:
    """The only rank of a start."""

    rank, world_size, host = 0, 1, "here"
    comm = SimpleNamespace(barrier=lambda: None)

    def tell(self, text, root):
        return text


def checked(monkeypatch, leave, mpirun="/opt/mpirun"):
    """The evidence and the seconds of a case whose mpirun did ``leave(folder)``; and its command."""
    commands = []

    def run_tool(words, timeout_s, environment):
        commands.append(words)
        leave(Path(words[-2]))
        return tool.Finished("", "", 0.1)

    monkeypatch.setattr(mpi, "_find_mpirun", lambda python: mpirun)
    monkeypatch.setattr(tool, "run_tool", run_tool)
    (point,) = Mpi(min_size=8, max_size=8, iterations=2, warmup=1).points(Place(Cluster(1, 1, "cpu"), 1))
    step = Mpi.prepare(Rig(), point)
    evidence = step.check()
    step.run()
    assert not os.path.exists(commands[0][-2]), "the folder of the records is left behind"
    return evidence, step.passes["seconds"](), commands[0]


def record(**values):
    return lambda folder: (folder / "0.json").write_text(json.dumps(values))


def test_the_record_of_its_mpi_rank_becomes_the_workers(monkeypatch):
    evidence, seconds, command = checked(monkeypatch, record(evidence={"wrong_elements": 0.0}, seconds=[0.5, 0.25]))
    assert evidence == {"wrong_elements": 0.0}
    assert seconds == [0.5, 0.25]
    assert command[:-2] == ["/opt/mpirun", "-n", "1", *own_copy.command("clusterbench.engine.mpi")]
    order = json.loads(command[-1])
    assert (order["world_size"], order["iterations"], order["warmup"], order["point"]["op"]) == (1, 2, 1, "all_reduce")


@pytest.mark.parametrize("kind", [WrongResult, NotHere, LaunchError])
def test_what_an_mpi_rank_found_wrong_is_the_workers_error(monkeypatch, kind):
    with pytest.raises(kind, match="as it was said"):
        checked(monkeypatch, record(failure=kind.__name__, reason="as it was said"))


def test_a_missing_library_is_said_by_whoever_looked_for_it(monkeypatch):
    with pytest.raises(NotHere, match="no MPI library"):
        checked(monkeypatch, lambda folder: (folder / "not_here").write_text("no MPI library"))


def test_a_rank_without_a_record_is_no_success(monkeypatch):
    with pytest.raises(ToolError) as caught:
        checked(monkeypatch, lambda folder: None)
    assert str(caught.value) == "mpirun ended well, but its rank 0 left no record on here"


def test_without_an_mpirun_the_case_is_skipped_with_what_brings_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("socket.gethostname", lambda: "n1")
    with pytest.raises(NotHere) as caught:
        mpi._find_mpirun(f"{tmp_path}/python")
    assert str(caught.value) == (
        "mpirun is not on PATH on n1.\nhint: 'pip install clusterbench[mpi]' brings MPICH and its mpirun"
    )


def test_the_mpirun_beside_this_python_comes_before_that_on_path(monkeypatch, tmp_path):
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").write_text("")
        (tmp_path / folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert mpi._find_mpirun(f"{tmp_path}/venv/python") == f"{tmp_path}/venv/mpirun"
