import torch
import torch.distributed
import torch.distributed._functional_collectives
import torch.distributed.tensor

from clusterbench.engine import compat
from clusterbench.engine.traffic import OPS, SILENT


def test_every_private_name_of_torch_is_still_there():
    assert compat.vanished() == []


def test_a_vanished_name_is_reported(monkeypatch):
    monkeypatch.setitem(compat.NAMES, "torch._C._no_such_thing", "a test")
    assert compat.vanished() == ["torch._C._no_such_thing"]


def test_every_operator_that_communicates_has_a_canonical_name():
    canonical = {*OPS, *SILENT, "batch_p2p_ops"}
    namespaces = compat.COMMUNICATION_NAMESPACES - {"symm_mem"}
    names = [schema.name.split("::") for schema in torch._C._jit_get_all_schemas()]
    assert sorted(name for namespace, name in names if namespace in namespaces and name not in canonical) == []


def test_dispatch_modes_travel_to_autograds_device_threads():
    # Cannot run without a GPU, so it is read: a backward carries the thread-local state, modes included.
    headers = torch.__path__[0] + "/include/"
    with open(headers + "ATen/ThreadLocalState.h") as state, open(headers + "torch/csrc/autograd/graph_task.h") as task:
        assert "TorchDispatchModeTLS torch_dispatch_mode_state_" in state.read()
        assert "at::ThreadLocalState thread_locals_" in task.read()
