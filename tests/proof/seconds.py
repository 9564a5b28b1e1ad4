"""The CPU seconds that proof takes on each rank: a program, and of any checkout of this project.

``python seconds.py CHECKOUT``, with a line of JSON for each case on stdin: its ``layout``, ``rank_order``,
``world_size`` and ``point`` as ``clusterbench plan --json`` prints them. The answers are lines of JSON on stdout: the
seconds of each rank. Workers are forked as a zygote forks them, one start for each case. Nothing of this project is
imported but from the checkout, which may be older than this file.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = timedelta(minutes=5)


def main(checkout: str) -> None:
    sys.path.insert(0, checkout)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # answers alone stand on stdout, whatever a library prints
    from clusterbench.launch import worker

    assert Path(worker.__file__).is_relative_to(checkout), worker.__file__
    names = (
        ["train_step"] if inspect.signature(worker.import_ahead).parameters else []
    )  # older ones import all there is
    worker.import_ahead(*([names] if names else []))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for line in sys.stdin:
        print(json.dumps(_seconds_of_ranks(json.loads(line))), file=answers)


def _seconds_of_ranks(case: dict[str, Any]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for rank in range(case["world_size"]):
            reader, writer = os.pipe()
            if os.fork() == 0:
                try:
                    os.write(writer, repr(_seconds(case, rank, folder)).encode())
                finally:
                    os._exit(0)
            os.close(writer)
            pipes.append(reader)
        texts = []
        for reader in pipes:
            with os.fdopen(reader) as said:
                texts.append(said.read())
        for _ in pipes:
            os.wait()
    return [float(text) for text in texts]


def _seconds(case: dict[str, Any], rank: int, folder: str) -> float:
    import torch
    import torch.distributed as dist

    from clusterbench.benchmarks import benchmarks
    from clusterbench.engine.rig import Rig
    from clusterbench.layout import ParallelLayout

    torch.set_num_threads(1)
    size = case["world_size"]
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    rig = Rig(rank=rank, world_size=size, local_rank=rank, host="here", device=torch.device("cpu"))
    rig.build_grid(ParallelLayout.parse(case["layout"]), case["rank_order"])
    step = benchmarks()["train_step"].prepare(rig, case["point"])
    dist.barrier()
    start_s = time.process_time()
    step.check()
    spent_s = time.process_time() - start_s
    dist.barrier()
    return spent_s


if __name__ == "__main__":
    main(sys.argv[1])
