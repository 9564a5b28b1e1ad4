"""Dry ranks on fake CUDA tensors, whose autograd works on a build of torch without CUDA.

For a test alone: it reaches into the binaries of one version of torch. ``python -m tests.dry.fake_cuda LIBRARY`` reads
pickled tasks from stdin and writes their answers to stdout.
"""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterbench.dry.processes import DryRunFailed, DryTask
    from clusterbench.job.dry import DryRank


def build_library(folder: Path) -> Path:
    """Compiles what torch's binaries get from C++."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch, library = Path(spec.origin).parent, folder / "fake_cuda.so"
    source = Path(__file__).with_suffix(".cpp")
    links = f"-L{torch / 'lib'} -Wl,-rpath,{torch / 'lib'} -lc10 -ltorch_cpu".split()
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{torch / 'include'}", str(source), *links, "-o", library]
    subprocess.run(command, check=True)
    return library


def dry_on_cuda(library: Path, tasks: Sequence[DryTask]) -> list[DryRank | DryRunFailed]:
    """What comes of each task on fake CUDA tensors, in a process that is no longer fit for anything else."""
    command = [sys.executable, "-m", "tests.dry.fake_cuda", str(library)]
    done = subprocess.run(command, input=pickle.dumps(list(tasks)), stdout=subprocess.PIPE, check=True)
    answers: list[DryRank | DryRunFailed] = pickle.loads(done.stdout)
    return answers


class Stream:
    """A stream on which nothing runs, as a context too."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def record_event(self) -> Event:
        return Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...


def use_cuda_module() -> None:
    """Puts into ``torch.cuda`` what a step asks a driver for: one card of Hopper's kind."""
    import torch

    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event = Stream, Event
    cuda.current_stream = Stream
    cuda.stream = lambda stream: stream
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda device: (9, 0)  # `broadcast` asks which cards send float8
    cuda.get_rng_state, cuda.set_rng_state = (lambda device: None), (lambda state, device: None)
    cuda._lazy_init = lambda: None
    tensor: Any = torch.Tensor
    tensor.pin_memory, tensor.is_pinned = (lambda whole: whole.clone()), (lambda whole: True)  # fake tensors cannot


def use_cuda_operators() -> Any:
    """Lets torch know that CUDA has kernels where a build without CUDA takes an operator apart.

    Returns what keeps them there.
    """
    import torch

    operators = torch.library.Library("aten", "IMPL", "CUDA")

    def never(*_: Any) -> None:
        raise AssertionError("a kernel ran")

    def empty(size: Sequence[int], **_: Any) -> Any:
        assert list(size) == [0]  # FSDP has one of no size, before there are fake tensors
        return torch.empty(size, device="meta")

    operators.impl("_fused_rms_norm", never)
    operators.impl("silu_backward", never)
    operators.impl("empty.memory_format", empty)
    return operators


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])  # before torch, which asks once what there is
    import torch

    torch.ones(1, requires_grad=True).sum().backward()  # autograd counts devices once, and starts a thread for each
    library.put_in_guard()
    torch.autograd.set_multithreading_enabled(False)
    use_cuda_module()
    operators = use_cuda_operators()

    from clusterbench.dry import rank
    from clusterbench.dry.processes import dry_answers
    from clusterbench.engine import compat

    # What experts multiply with goes by torch's own rules for CUDA.
    del compat._ON_FAKES[torch.ops.aten._grouped_mm.default]
    replaced: Any = rank
    replaced.dry_rank = partial(rank.dry_rank, device="cuda:0")
    tasks: list[DryTask] = pickle.load(sys.stdin.buffer)
    answers = dict(dry_answers(tasks))
    sys.stdout.buffer.write(pickle.dumps([answers[task] for task in tasks]))
    operators._destroy()


if __name__ == "__main__":
    main()
