"""Whether two ranks on one GPU can talk over NCCL at all, before a run is spent on it: a line for each step.

``python -m tests.gpu.nccl_probe cpu|cuda`` starts both. NCCL refuses two ranks on one GPU of one host, so each is told
that it is on a host of its own, as ``clusterbench run --ranks-per-gpu`` does. The last line before a hang says where.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

RANKS = 2
SECONDS = 30
STEPS = ("met", "all_reduce", "all_to_all", "message", "split", "all_reduce of the half")


def rank_main(device: str, rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    os.environ.setdefault("NCCL_HOSTID", f"probe-{rank}")
    here = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(store, RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=SECONDS),
        device_id=here if device == "cuda" else None,
    )

    def tell(step: str, result: torch.Tensor, expected: list[float]) -> None:
        if result.tolist() != expected:  # the host waits for the device here
            raise SystemExit(f"rank {rank}: {step} gave {result.tolist()}, not {expected}")
        print(f"rank {rank}: {step} ok", flush=True)

    mine = torch.full((2,), float(rank + 1), device=here)
    tell("met", mine, [rank + 1.0] * 2)
    whole = mine.clone()
    dist.all_reduce(whole)
    tell("all_reduce", whole, [3.0, 3.0])
    exchanged = torch.empty_like(mine)
    dist.all_to_all_single(exchanged, mine)
    tell("all_to_all", exchanged, [1.0, 2.0])
    if rank == 0:
        dist.send(mine, 1)
        received = mine
    else:
        received = torch.empty_like(mine)
        dist.recv(received, 0)
    tell("message", received, [1.0, 1.0])
    halves = [dist.new_group([number]) for number in range(RANKS)]
    tell("split", mine, [rank + 1.0] * 2)
    dist.all_reduce(mine, group=halves[rank])
    tell("all_reduce of the half", mine, [rank + 1.0] * 2)
    dist.destroy_process_group()


def main(device: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.gpu.nccl_probe", device]
        store = str(Path(folder) / "store")
        ranks = [subprocess.Popen([*command, str(rank), store]) for rank in range(RANKS)]
        return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    rank_main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
