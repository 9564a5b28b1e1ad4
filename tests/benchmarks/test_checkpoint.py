import math
import os
import re
import resource
import time
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from clusterbench.benchmarks import checkpoint
from clusterbench.benchmarks.checkpoint import Checkpoint, _Saved
from clusterbench.cluster import Cluster
from clusterbench.errors import ClusterbenchError, DiskError
from clusterbench.types import Case, Observation, Place
from tests.benchmarks.alone import CPU, derived, rig
from tests.ranks import run_ranks

MIB = 2**20


def point(operation, path):
    (made,) = Checkpoint(operations=(operation,), path=path, size=MIB, tensors=4, iterations=2).points(CPU)
    return made


def test_a_checkpoint_is_as_large_as_what_all_ranks_hold():
    metrics = derived("checkpoint", {"operation": "save", "size_bytes": 10**9}, [[1.0], [2.0]])
    assert metrics["bandwidth_per_rank"].value == 0.5e9
    assert metrics["bandwidth"].value == 1e9


def test_the_blocking_part_of_an_asynchronous_save_stands_beside_the_whole():
    passes = {"samples": [{"blocking_time": [0.1, 0.2, 0.3]}]}
    metrics = derived("checkpoint", {"operation": "async_save", "size_bytes": 8}, [[1.0]], passes=passes)
    assert (metrics["transfer_time"].value, metrics["blocking_time"].value) == (1.0, 0.2)


def test_a_save_tells_how_often_it_should_be_made_where_failures_are_known():
    """30 s every 3 hours: an interval of 13 minutes keeps 92.7 % of the time; docs of the formula."""
    point = {"operation": "save", "size_bytes": 8, "mtbf_h": 3.0}
    metrics = derived("checkpoint", point, [[20.0, 10.0], [30.0, 30.0]])
    assert round(metrics["best_interval"].value) == 785
    assert round(metrics["training_share"].value, 3) == 0.927
    assert metrics["training_share"].basis == "a failure in 3 h; a save stops training for 30 s"


def test_a_save_that_takes_longer_leaves_less_of_the_time_to_training():
    point = {"operation": "save", "size_bytes": 8, "mtbf_h": 3.0}
    share = derived("checkpoint", point, [[10.0, 30.0, 50.0]])["training_share"]
    assert round(share.value, 3) == 0.927
    assert share.low < share.value < share.high


def test_an_asynchronous_save_stops_training_while_it_blocks_and_the_next_one_waits_for_it():
    passes = {"samples": [{"blocking_time": [0.5]}, {"blocking_time": [1.0]}]}
    point = {"operation": "async_save", "size_bytes": 8, "mtbf_h": 3.0}
    metrics = derived("checkpoint", point, [[30.0], [30.0]], passes=passes)
    assert round(metrics["best_interval"].value) == 146
    assert metrics["training_share"].value == pytest.approx(0.984, abs=0.001)
    slow = derived("checkpoint", point, [[900.0], [900.0]], passes=passes)
    assert slow["best_interval"].value == 899


class Noted:
    """A model and a folder that are not there; notes to and from where it is saved and loaded. A save blocks longer
    each time."""

    path, places = Path("/saved"), []

    def __init__(self, *arguments):
        self.places.clear()

    def removed_on_error(self):
        return nullcontext()

    def save(self, place):
        self.places.append(place.name)

    def save_aside(self, place):
        self.places.append(place.name)
        return float(len(self.places))

    load = save

    def fill(self, checkpoint):
        pass

    def clear(self):
        self.places.clear()

    def compare(self, checkpoint=0):
        return {"wrong_elements": 0.0}


@pytest.mark.parametrize("operation", ["save", "load", "async_save"])
def test_each_iteration_has_a_checkpoint_of_its_own_and_no_figure_is_of_the_warm_up(monkeypatch, operation):
    monkeypatch.setattr(checkpoint, "_Model", Noted)
    monkeypatch.setattr(checkpoint, "_Saved", Noted)
    monkeypatch.setattr(checkpoint, "_dropped", lambda rank, places: {})
    (made,) = Checkpoint(operations=(operation,), path="/", size=MIB, tensors=4, iterations=2, warmup=1).points(CPU)
    step = Checkpoint.prepare(rig(), made)
    step.check()
    Noted.places.clear()
    for _ in range(3):
        step.run()
    assert Noted.places == ["0", "1", "2"]
    if operation == "async_save":
        assert step.passes["samples"]() == {"blocking_time": [2.0, 3.0]}


class Ordered(Noted):
    """Notes what is done, in its order."""

    done: ClassVar[list[str]] = []

    def __getattribute__(self, name):
        if name in ("save", "save_aside", "clear", "load", "compare"):
            Ordered.done.append(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("operation", "before", "behind"),
    [
        ("save", ["save", "clear", "load", "compare"], ["clear", "load", "compare"]),
        ("async_save", ["save_aside", "clear", "load", "compare"], ["clear", "load", "compare"]),
        ("load", ["save", "clear", "load", "compare", "save", "save", "clear"], ["compare"]),
    ],
)
def test_what_is_compared_was_cleared_before_it_was_loaded(monkeypatch, operation, before, behind):
    for name, stand_in in (("_Model", Ordered), ("_Saved", Noted), ("_dropped", lambda rank, places: {})):
        monkeypatch.setattr(checkpoint, name, stand_in)
    step = Checkpoint.prepare(rig(), point(operation, "/"))
    Ordered.done.clear()
    step.check()
    assert Ordered.done == before
    step.run()
    Ordered.done.clear()
    step.confirm(True)
    assert Ordered.done == behind


def test_no_word_of_a_model_is_another_ones():
    models = [object.__new__(checkpoint._Model) for _ in range(3)]
    for rank, model in enumerate(models):
        model.rig, model.numel = SimpleNamespace(rank=rank, world_size=3, device="cpu"), 5
        model.state = dict.fromkeys("abcd")
    places = [(index, checkpoint) for index in range(4) for checkpoint in range(2)]
    words = [word for model in models for place in places for word in model.words(*place).tolist()]
    assert len(set(words)) == 3 * 4 * 2 * 5


def test_each_rank_drops_its_own_files_from_the_cache(monkeypatch, tmp_path):
    dropped = []
    for name in ("__0_0.distcp", "__1_0.distcp", "__1_1.distcp", "__11_0.distcp", ".metadata"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.setattr(checkpoint, "leave_cache", lambda file: dropped.append(os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.setattr(checkpoint, "cache_evidence", lambda descriptors: {"resident_fraction": len(descriptors) / 8})
    assert checkpoint._dropped(1, [tmp_path]) == {"resident_fraction": 0.25}
    assert {Path(name).name for name in dropped} == {"__1_0.distcp", "__1_1.distcp"}


@pytest.mark.parametrize("operation", ["save", "save_aside"])
def test_as_many_threads_write_as_were_asked_for(monkeypatch, operation):
    asked = []
    saver = "torch.distributed.checkpoint.state_dict_saver"
    monkeypatch.setattr(
        "torch.distributed.checkpoint.filesystem.FileSystemWriter",
        lambda place, thread_count: asked.append(thread_count),
    )
    monkeypatch.setattr(f"{saver}.save", lambda state, **more: None)
    done = Future()
    done.set_result(None)
    monkeypatch.setattr(f"{saver}.async_save", lambda state, **more: done)
    model = object.__new__(checkpoint._Model)
    model.state, model.threads = {}, 6
    getattr(model, operation)(Path("/"))
    assert asked == [6]


def test_an_asynchronous_save_blocks_until_it_returns_and_not_until_all_is_saved(monkeypatch):
    class Saving(Future):
        def result(self, timeout=None):
            time.sleep(0.5)

    monkeypatch.setattr("torch.distributed.checkpoint.state_dict_saver.async_save", lambda state, **more: Saving())
    model = object.__new__(checkpoint._Model)
    model.state, model.threads = {}, 1
    assert model.save_aside(Path("/")) < 0.5


def test_an_asynchronous_save_ends_when_all_is_saved(monkeypatch, tmp_path):
    waited = []

    class Saving(Future):
        def result(self, timeout=None):
            waited.append(True)

    monkeypatch.setattr("torch.distributed.checkpoint.state_dict_saver.async_save", lambda state, **more: Saving())
    model = object.__new__(checkpoint._Model)
    model.state, model.threads = {}, 1
    assert model.save_aside(tmp_path) > 0
    assert waited == [True]


def test_failures_are_asked_of_saves_alone_and_change_no_other_case():
    made = Checkpoint(operations=("save", "load"), mtbf_h=3.0).points(CPU)
    assert [Checkpoint().label(point) for point in made] == [
        "save-256MiB-16tensors-mtbf3h",
        "load-256MiB-16tensors",
    ]
    assert "mtbf_h" not in next(iter(Checkpoint().points(CPU)))
    (said,) = Checkpoint(operations=("load",), mtbf_h=3.0).ineffective(["mtbf_h"], CPU)
    assert said == ("mtbf_h", "a load is made once for a failure, at no interval")


def test_how_often_a_job_fails_follows_from_its_nodes():
    """Llama 3 405B: 419 unexpected interruptions in 54 days of 2,048 nodes, one in 3.1 hours."""
    asked = Checkpoint(operations=("save",), node_failures=419 / (54 * 2.048), job_nodes=2048, restart_s=300.0)
    (made,) = asked.points(CPU)
    assert made["mtbf_h"] == pytest.approx(3.093, abs=1e-3)
    assert asked.label(made) == "save-256MiB-16tensors-mtbf3.09308h-restart300s-2048nodes"
    assert list(asked.ineffective(["node_failures", "job_nodes", "restart_s"], CPU)) == []


@pytest.mark.parametrize(
    ("options", "key", "why"),
    [
        ({"node_failures": 6.5}, "node_failures", "without job_nodes it is not known how often a job fails"),
        (
            {"restart_s": 60.0},
            "restart_s",
            "without mtbf_h, or node_failures and job_nodes, it is not known how often a job fails",
        ),
        ({"node_failures": 6.5, "job_nodes": 8, "mtbf_h": 3.0}, "mtbf_h", "node_failures and job_nodes say it"),
        ({"job_nodes": 8, "mtbf_h": 3.0}, "job_nodes", "it is for node_failures and repair_h"),
    ],
)
def test_what_is_said_of_failures_in_vain_is_refused(options, key, why):
    assert (key, why) in Checkpoint(**options).ineffective([*options], CPU)


def test_restarts_take_more_of_the_time_and_spares_give_it_back():
    point = {"operation": "save", "size_bytes": 8, "mtbf_h": 3.0, "restart_s": 600.0}
    goodput = derived("checkpoint", point, [[30.0], [30.0]])["goodput"]
    assert goodput.value == pytest.approx(0.927 * math.exp(-1 / 18), abs=1e-3)
    assert goodput.basis == "restarts of 600 s; a node for the failed one is always there"
    case = Case("x", "checkpoint", 1, {**point, "repair_h": 24.0, "job_nodes": 2048}, "cpu", 1, 1, 1, 0, 60.0)
    seen = Observation("x", "", 0, 1, ("a",), [[30.0]])
    figures = [metric for metric in Checkpoint.derive(case, seen, CPU) if metric.name in ("goodput", "spare_nodes")]
    assert {metric.detail.get("category"): round(metric.value, 3) for metric in figures} == {
        "no spare nodes": 0.097,
        "1 spare node": 0.193,
        "2 spare nodes": 0.285,
        "4 spare nodes": 0.457,
        "8 spare nodes": 0.725,
        "16 spare nodes": 0.875,
        "18 spare nodes": 0.877,
        None: 18.0,
    }
    assert figures[0].basis == "restarts of 600 s, and repairs of 24 h, for which 89 % of the time is waited"
    assert figures[-1].basis == "beside 2,048 nodes; of all that there are"


def test_of_a_job_of_unknown_size_spares_are_told_until_they_bring_nothing():
    point = {"operation": "save", "size_bytes": 8, "mtbf_h": 30.0, "repair_h": 3.0}
    case = Case("x", "checkpoint", 1, point, "cpu", 1, 1, 1, 0, 60.0)
    metrics = Checkpoint.derive(case, Observation("x", "", 0, 1, ("a",), [[30.0]]), CPU)
    assert [metric.detail["category"] for metric in metrics if metric.name == "goodput"] == [
        "no spare nodes",
        "1 spare node",
        "2 spare nodes",
    ]


def test_loads_say_whether_the_cache_had_any_of_it():
    metrics = derived("checkpoint", {"operation": "load", "size_bytes": 8}, [[1.0]], [{"resident_fraction": 0.4}])
    assert metrics["bandwidth"].detail == {"category": "cached"}


def test_tensors_that_are_not_whole_are_refused():
    (made,) = Checkpoint(operations=("save",), size=MIB, tensors=3).points(CPU)
    assert Checkpoint().objection(made, CPU) == "1048576 B in 3 tensors are not whole words of 8 B in each"


@pytest.mark.parametrize(
    ("precision", "bytes_each"), [("float32_master", 12), ("bfloat16_moments", 8), ("pure_bfloat16", 6)]
)
def test_of_a_model_weights_and_both_moments_are_saved_once(precision, bytes_each):
    """llama-8b has 8,030,261,248 parameters in 291 tensors: 32 layers of 9, and three around them."""
    place = Place(Cluster(2, 8, "cuda"), 2)
    made = Checkpoint(shape="llama-8b", precision=precision, operations=("save", "load")).points(place)
    for point, operation in zip(made, ("save", "load"), strict=True):
        assert point["tensors"] == 3 * 291
        of_all = point["size_bytes"] * 16
        assert of_all == pytest.approx(8_030_261_248 * bytes_each, rel=1e-5)
        assert of_all >= 8_030_261_248 * bytes_each
        assert Checkpoint().objection(point, place) is None
        suffix = "" if precision == "float32_master" else f"-{precision}"
        assert Checkpoint().label(point) == f"{operation}-llama-8b{suffix}"


def test_what_a_model_decides_or_is_missing_is_said():
    assert dict(Checkpoint(shape="llama-8b").ineffective(["size", "shape"], CPU)).keys() == {"size"}
    assert dict(Checkpoint().ineffective(["precision", "size"], CPU)).keys() == {"precision"}


def on_ranks(operation, path, fault):
    import torch.distributed as dist

    step = Checkpoint.prepare(this_rig(dist), point(operation, path))
    if fault == "full":
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, hard))
    try:
        evidence = step.check()
        for _ in range(2):
            step.run()
    except ClusterbenchError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if fault == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    samples = step.passes["samples"]() if step.passes else {}
    return {**evidence, **samples}


def this_rig(dist):
    made = rig(rank=dist.get_rank())
    made.world_size = dist.get_world_size()
    return made


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [2, 4])
def test_what_is_loaded_is_what_was_saved(tmp_path, world_size):
    for operation in ("save", "load"):
        for evidence in run_ranks(world_size, on_ranks, operation, str(tmp_path), ""):
            assert evidence["wrong_elements"] == 0.0
            assert evidence.get("resident_fraction", 0.0) in (0.0, 1.0)  # a file system in memory keeps all
        assert list(tmp_path.iterdir()) == []


@pytest.mark.gloo
def test_an_asynchronous_save_blocks_for_a_part_of_its_time(tmp_path):
    for evidence in run_ranks(2, on_ranks, "async_save", str(tmp_path), ""):
        assert evidence["wrong_elements"] == 0.0
        assert len(evidence["blocking_time"]) == 2
        assert all(0 < blocked_s < 60 for blocked_s in evidence["blocking_time"])


@pytest.mark.gloo
def test_a_disk_that_is_full_for_one_rank_is_said_by_all_and_nothing_is_left(tmp_path):
    messages = run_ranks(2, on_ranks, "save", str(tmp_path), "full")
    for sentence in messages:
        assert re.match(
            rf"DiskError: rank 1: {tmp_path} on \S+: File too large; \S+ of \S+ were free\.\nhint: ",
            sentence,
        ), sentence
    assert list(tmp_path.iterdir()) == []


def where_the_format_fails(path):
    import torch.distributed as dist
    from torch.distributed.checkpoint.api import CheckpointException

    from clusterbench.benchmarks.checkpoint import _Model

    def save(model, place):
        raise CheckpointException("x", {1: (RuntimeError("unexpected pos 704 vs 598"), None)})

    _Model.save = save
    try:
        Checkpoint.prepare(this_rig(dist), point("save", path)).check()
    except RuntimeError as error:
        return str(error)


@pytest.mark.gloo
def test_what_pytorch_says_in_place_of_the_disk_comes_with_what_was_free(tmp_path):
    for sentence in run_ranks(2, where_the_format_fails, str(tmp_path)):
        assert re.fullmatch(
            rf"rank 1: RuntimeError: unexpected pos 704 vs 598; \S+ of \S+ were free at {tmp_path}", sentence
        )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_not_filled(tmp_path, monkeypatch):
    class Disk:
        f_bavail, f_blocks, f_frsize = 100, 1024, 4096

    monkeypatch.setattr("os.statvfs", lambda path: Disk)
    with pytest.raises(
        DiskError, match=rf"{tmp_path} on \S+ has no room for 3MiB, what this case writes there; 400KiB of"
    ):
        _Saved(rig(), str(tmp_path), 3 * MIB)
    assert list(tmp_path.iterdir()) == []


def with_a_wrong_element(path):
    import torch.distributed as dist

    from clusterbench.benchmarks.checkpoint import _Model

    if dist.get_rank() == 1:
        real = _Model.load

        def load(model, place):
            real(model, place)
            model.state["layers.2.weight"].to_local()[7] += 1

        _Model.load = load
    try:
        return Checkpoint.prepare(this_rig(dist), point("save", path)).check()
    except ClusterbenchError as error:
        return str(error)


@pytest.mark.gloo
def test_one_wrong_element_on_one_rank_is_found_there(tmp_path):
    right, wrong = run_ranks(2, with_a_wrong_element, str(tmp_path))
    assert right == {"wrong_elements": 0.0}
    assert re.match(
        r"layers\.2\.weight gave wrong results on rank 1 \(host here\): 1 of 32768 elements differ\. First at index 7",
        wrong,
    )


def that_does_less_once_proven(path, operation):
    import torch.distributed as dist

    from clusterbench.benchmarks.checkpoint import _Model

    own = this_rig(dist)
    step = Checkpoint.prepare(own, point(operation, path))
    step.check()
    step.run()
    own.made_calls = 1
    evidence = step.confirm(True)
    name = {"save": "save", "load": "load", "async_save": "save_aside"}[operation]
    real = getattr(_Model, name)

    def lazy(model, place):
        model.state["layers.1.weight"].to_local()[5] += dist.get_rank()
        return real(model, place)

    setattr(_Model, name, lazy)
    if operation == "load":
        _Model.load = lambda model, place: model.clear()
    step.run()
    own.made_calls = 2
    try:
        return evidence, step.confirm(True)
    except ClusterbenchError as error:
        return evidence, str(error)


@pytest.mark.gloo
@pytest.mark.parametrize("operation", ["save", "load", "async_save"])
def test_what_is_wrong_only_while_it_is_timed_is_found(tmp_path, operation):
    right, wrong = run_ranks(2, that_does_less_once_proven, str(tmp_path), operation)
    assert right[0] == wrong[0] == {"wrong_elements": 0.0}
    assert re.match(r"layers\.\d\.weight gave wrong results on rank 1 \(host here\): ", wrong[1])
    if operation != "load":
        assert right[1] == {"wrong_elements": 0.0}


def that_loads_once(path):
    import torch.distributed as dist

    from clusterbench.benchmarks.checkpoint import _Model

    own = this_rig(dist)
    step = Checkpoint.prepare(own, point("load", path))
    step.check()
    step.run()
    _Model.load = lambda model, place: None
    step.run()
    own.made_calls = 2
    try:
        return step.confirm(True)
    except ClusterbenchError as error:
        return str(error)


@pytest.mark.gloo
def test_a_load_that_leaves_what_an_earlier_one_brought_is_found(tmp_path):
    (wrong,) = run_ranks(1, that_loads_once, str(tmp_path))
    assert wrong.startswith("layers.0.weight gave wrong results on rank 0 (host here): ")


def where_only_rank_0_sees(path):
    import torch.distributed as dist

    if dist.get_rank() == 1:
        Path.is_dir = lambda self: False
    try:
        return Checkpoint.prepare(this_rig(dist), point("save", path)).check()
    except ClusterbenchError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.gloo
def test_a_folder_that_is_not_shared_is_said_by_all_ranks(tmp_path):
    expected = (
        f"NotHere: 1 of 2 ranks do not see what rank 0 wrote to {tmp_path}: it is not the same folder on all "
        "hosts.\nhint: set 'path' to one on a file system that they share"
    )
    assert run_ranks(2, where_only_rank_0_sees, str(tmp_path)) == [expected, expected]
    assert list(tmp_path.iterdir()) == []
