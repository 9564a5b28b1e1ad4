"""GPUs that are not there."""

from contextlib import nullcontext

import pytest
import torch


class Stream:
    """A stream of a GPU that is not there: all it is given is done at once."""

    def __init__(self, device=None):
        self.device = device

    def record_event(self):
        return "done"

    def wait_event(self, event):
        assert event == "done"

    def wait_stream(self, stream):
        assert isinstance(stream, Stream)


@pytest.fixture
def two_gpus(monkeypatch):
    """Host memory that passes for two GPUs which reach each other; what is copied arrives."""

    def here(create):
        return lambda *sizes, device=None, pin_memory=False, **rest: create(*sizes, **rest)

    for name in ("empty", "zeros", "arange", "full"):
        monkeypatch.setattr(torch, name, here(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for name, stand_in in {
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": Stream,
        "synchronize": lambda device=None: None,
        "device_count": lambda: 2,
        "can_device_access_peer": lambda source, target: source != target,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


REAL_COPY = torch.Tensor.copy_

LESS_THAN_A_COPY = {
    "nothing": lambda target, source, **how: target,
    "half": lambda target, source, **how: REAL_COPY(target[: len(target) // 2], source[: len(target) // 2]),
    "another's": lambda target, source, **how: REAL_COPY(target, source.flip(0)),
}
"""What a copy does that is faster, or brings what it was not to bring."""


@pytest.fixture(params=LESS_THAN_A_COPY)
def copies_less(request, monkeypatch):
    """To call when every copy is to do less from then on, and with True when they are to be whole again."""

    def begin(is_whole=False):
        monkeypatch.setattr(torch.Tensor, "copy_", REAL_COPY if is_whole else LESS_THAN_A_COPY[request.param])

    return begin
