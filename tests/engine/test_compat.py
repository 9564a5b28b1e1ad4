import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives
import torch.distributed.tensor

from clusterbench.engine import compat
from clusterbench.engine.traffic import OPS, SILENT
from clusterbench.torch_release import adds_up_in_parameters, holds_gathered_before, makes_buffers_for_messages
from tests.ranks import run_ranks


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


def test_what_formulas_take_for_granted_of_a_release_is_what_torch_has():
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPCommContext, FSDPParamGroup
    from torch.distributed.pipelining.stage import PipelineStage

    assert adds_up_in_parameters() == hasattr(FSDPParamGroup, "_take_unsharded_grads_to_reduce")
    assert holds_gathered_before() != hasattr(FSDPCommContext, "release_all_gather_state_for_comm_reuse")
    assert makes_buffers_for_messages() == hasattr(PipelineStage, "release_fwd_send_outputs")


LAYOUTS = [
    ("tp2+sp", {"dtype": "bfloat16"}),
    ("tp2", {"dtype": "float32", "shape": "moe-tiny"}),
    ("dp2+zero3", {"dtype": "bfloat16"}),
]


@pytest.mark.gloo
def test_shapes_on_the_meta_device_are_those_of_fake_tensors():
    differ, compared = zip(*run_ranks(2, _shapes_that_differ, LAYOUTS), strict=True)
    assert differ == ([], [])
    assert min(compared) > 120  # operators and shapes of three layouts


def _shapes_that_differ(layouts):
    """Of two steps each: operators of which the result's shape, stride or dtype differs, and how many were compared."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    fake, differ, compared = ShardingPropagator._propagate_tensor_meta_non_cached, [], [0]

    def both(self, schema):
        wanted = fake(self, schema)
        with compat.shapes_on_meta():
            found = fake(self, schema)
        compared[0] += 1
        if found != wanted:
            differ.append(f"{schema.op}: {found}, not {wanted}")
        return wanted

    ShardingPropagator._propagate_tensor_meta_non_cached = both
    for layout, changes in layouts:
        job = make_job(layout, **changes)
        rig = make_rig(job.layout)
        step = TrainingStep(job, from_options({}), rig.grid, rig.device)
        step()
        step()
    return differ, compared[0]


@pytest.mark.gloo
def test_no_fake_tensor_is_made_where_shapes_are_worked_out_on_the_meta_device():
    assert run_ranks(2, _fake_modes_made) == [(True, False, True)] * 2


def _fake_modes_made():
    """Whether DTensor made one before, meanwhile and after."""
    from torch.distributed.tensor import DeviceMesh, Shard, _sharding_prop, distribute_tensor

    real, made = _sharding_prop.FakeTensorMode, [0]

    def counted():
        made[0] += 1
        return real()

    _sharding_prop.FakeTensorMode = counted
    mesh = DeviceMesh("cpu", [0, 1])

    def makes(rows):
        before = made[0]
        table = distribute_tensor(torch.ones(rows, 4), mesh, [Shard(0)])
        assert (table * 2).to_local().sum() == 4 * rows
        return made[0] > before

    before = makes(2)
    with compat.shapes_on_meta():
        meanwhile = makes(4)
    return before, meanwhile, makes(6)
