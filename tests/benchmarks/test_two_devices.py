"""No benchmark mixes tensors of the device with those of the host, in what it times and in what proves it."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.two_devices import DEVICE, TwoDevices

SMALL = {"min_size": 4096, "max_size": 4096}
COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce", "scatter"),
    *("gather", "send_recv", "parameter_server"),
)
OPTIONS = {
    **dict.fromkeys(COLLECTIVES, SMALL),
    "matmul": {"sizes": (64,)},
    "cpu_memory": {"size": 4096},
    "link_matrix": {"size": 4096, "between": "ranks", "pair_iterations": 2, "pair_warmup": 1},
    "embedding_lookup": {"num_rows": 50, "width": 4, "lookups": (20,), "duplicates": "removed"},
    "file_io": {"size": 65536, "block": 65536},
    "small_files": {"files": 3},
    "checkpoint": {"size": 65536},
}


def ran(path: str) -> None:
    import torch.distributed as dist

    from clusterbench.benchmarks import benchmarks
    from clusterbench.cluster import Cluster
    from clusterbench.engine.rig import Rig
    from clusterbench.types import Place

    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = Place(Cluster(1, world_size, "cpu"), 1)
    for name, options in OPTIONS.items():
        on_disk = {"path": path} if "path" in benchmarks()[name].options() else {}
        kind = benchmarks()[name].from_options({**options, **on_disk})
        point = next(point for point in kind.points(place) if kind.world_size(point, place) == world_size)
        rig = Rig(rank=rank, world_size=world_size, local_rank=rank, host="here", device=DEVICE)
        with TwoDevices():
            step = kind.prepare(rig, point)
            step.check()
            step.run()
            step.confirm(True)
            for take in step.passes.values():
                take()
        dist.barrier()


@pytest.mark.gloo
def test_probes_keep_device_and_host_apart(tmp_path):
    assert run_ranks(2, ran, str(tmp_path)) == [None, None]
