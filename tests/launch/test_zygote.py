"""What must hold in the process that is forked, or its children hang or lose their GPU."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, os
import torch

asked = []
for name in ("is_available", "device_count", "_lazy_init", "current_device", "get_device_properties"):
    real = getattr(torch.cuda, name)
    setattr(torch.cuda, name, lambda *a, _real=real, _name=name, **k: (asked.append(_name), _real(*a, **k))[1])

from clusterbench.benchmarks import benchmarks
from clusterbench.launch import worker
worker.import_ahead(benchmarks())
print(json.dumps({"asked": asked, "threads": len(os.listdir("/proc/self/task")), "cuda": torch.cuda.is_initialized()}))
"""


AHEAD = """
import sys
from clusterbench.launch import worker
worker.import_ahead(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith(("clusterbench.benchmarks.", "torch.distributed.checkpoint."))))
"""


def test_what_only_other_benchmarks_need_is_not_imported():
    done = subprocess.run([sys.executable, "-c", AHEAD, "matmul"], capture_output=True, text=True, check=True)
    imported = {name for name in done.stdout.split() if not name.split(".")[2].startswith("_")}
    assert imported == {"clusterbench.benchmarks.matmul"}


def test_importing_ahead_starts_no_thread_and_asks_cuda_nothing():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=280)
    assert json.loads(done.stdout) == {"asked": [], "threads": 1, "cuda": False}
