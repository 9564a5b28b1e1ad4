import sys
import threading

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from clusterbench.engine.memory import MemoryTracker, reset_cuda_memory
from clusterbench.job.passes import CATEGORIES
from tests.ranks import run_ranks

MIB = 2**20
FLOATS = 10 * MIB // 4


class Plain(nn.Module):
    """One weight times its input; nothing else of any size."""

    def __init__(self, numel=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(numel))

    def forward(self, x):
        return (self.weight * x).sum()


def peak_of(model, step, optimizer=None):
    with MemoryTracker(model, optimizer) as tracker:
        step()
    return tracker.peak()


def only(peak, category):
    """Asserts that 10 MiB stand in one category at the peak and less than 1 MiB in any other."""
    assert peak.by_category[category] // MIB == 10
    assert all(size < MIB for name, size in peak.by_category.items() if name != category)
    assert sum(peak.by_category.values()) == peak.total_bytes


def test_what_is_saved_for_backward_is_an_activation():
    model = Plain()

    def step():
        hidden = model(torch.ones(4)).expand(FLOATS) * 1.0
        hidden.exp_().sum()  # exp saves its result

    only(peak_of(model, step), "activations")


def test_what_lives_only_inside_backward_is_temporary():
    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.zeros(FLOATS).sum()

    model = Plain()
    only(peak_of(model, lambda: Scratch.apply(model(torch.ones(4))).backward()), "temporary")


def test_a_gradient_is_a_gradient_from_its_first_byte():
    model = Plain(FLOATS)
    peak = peak_of(model, lambda: model(torch.ones(1)).backward())
    assert peak.by_category["gradients"] == peak.at_rest["gradients"] == 10 * MIB
    assert peak.peak_by_category["temporary"] < MIB


def test_optimizer_state_is_found_whether_it_was_there_or_is_made_now():
    model = Plain(FLOATS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        model(torch.ones(1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        peak = peak_of(model, step, optimizer)
        assert {name: size // MIB for name, size in peak.at_rest.items() if size >= MIB} == {
            "parameters": 10,
            "optimizer_state": 10,
        }
        assert peak.by_category["optimizer_state"] == 10 * MIB


def test_a_storage_may_end_on_another_thread_while_the_tracker_is_left():
    """Gloo's threads hold what they send, and let go of it whenever they are done."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with MemoryTracker(Plain()):
            held = [torch.ones(1) for _ in range(20_000)]
            letting_go = threading.Thread(target=held.clear)
            letting_go.start()
        letting_go.join()
    finally:
        sys.setswitchinterval(usual)
    assert not held


def communicated():
    model = Plain()

    def step():
        buffer = torch.ones(FLOATS)
        torch.distributed.all_reduce(buffer)

    peak = peak_of(model, step)
    only(peak, "communication")
    return peak.total_bytes


@pytest.mark.gloo
def test_the_buffer_of_a_collective_is_communication():
    assert run_ranks(2, communicated)[0] // MIB == 10


def bucketed():
    model = nn.parallel.DistributedDataParallel(Plain(FLOATS), gradient_as_bucket_view=False)
    for _ in range(2):
        model(torch.ones(1)).backward()
    peak = peak_of(model, lambda: model(torch.ones(1)).backward())
    return {name: size // MIB for name, size in peak.at_rest.items() if size >= MIB}


@pytest.mark.gloo
def test_ddps_bucket_made_before_the_tracker_is_found_when_it_is_reduced():
    assert run_ranks(2, bucketed)[0] == {"parameters": 10, "gradients": 10, "communication": 10}


def sharded():
    from torch.distributed.fsdp import fully_shard

    layers = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)])
    for layer in layers:
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(layers)
    optimizer = torch.optim.AdamW(layers.parameters())

    def step():
        layers(torch.ones(8, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    peak = peak_of(layers, step, optimizer)
    return dict(peak.at_rest), dict(peak.peak_by_category), torch.UntypedStorage.resize_.__qualname__


def zero_1():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns on import, by scripting its own code

    model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)

    def step():
        model(torch.ones(4, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return peak_of(model, step, optimizer).at_rest["optimizer_state"]


@pytest.mark.gloo
def test_the_state_of_zero_1_is_found_on_the_rank_that_owns_it():
    assert run_ranks(2, zero_1) == [2 * (2 * 512 * 512 * 4) + 2 * 4] * 2


@pytest.mark.gloo
def test_fsdp_rests_on_shards_and_gathers_layers_one_by_one():
    shards = 4 * 1024 * 1024 * 4 // 2
    at_rest, peaks, resize = run_ranks(2, sharded)[0]
    assert at_rest["parameters"] == shards
    assert at_rest["optimizer_state"] == 2 * shards + 4 * 4  # a step count per parameter
    assert at_rest["gradients"] == 0
    layer = 1024 * 1024 * 4
    assert shards + layer <= peaks["parameters"] <= shards + 2 * layer
    assert peaks["communication"] >= layer
    assert "MemoryTracker" not in resize


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    peak = peak_of(model, lambda: model(torch.ones(4, 1024)).sum().backward())
    return dict(peak.at_rest)


@pytest.mark.gloo
def test_dtensors_count_with_their_share_not_with_the_whole():
    at_rest = run_ranks(2, tensor_parallel)[0]
    assert at_rest["parameters"] == at_rest["gradients"] == 2 * 1024 * 4096 * 4 // 2


def test_recomputed_activations_are_activations_and_fewer():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6))

    def step(recompute):
        x = torch.ones(512, 256, requires_grad=True)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        x.sum().backward()
        blocks.zero_grad()

    kept = peak_of(blocks, lambda: step(False)).peak_by_category["activations"]
    recomputed = peak_of(blocks, lambda: step(True)).peak_by_category["activations"]
    one_block, boundary = 2 * 512 * 1024 * 4 + 512 * 256 * 4, 512 * 256 * 4
    assert kept >= 6 * one_block
    assert 5 * boundary + one_block - boundary <= recomputed <= 7 * boundary + one_block


def transformer_step():
    model = nn.Sequential(
        nn.Embedding(1000, 256),
        *[nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0) for _ in range(2)],
        nn.Linear(256, 1000),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(4, 64, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    return model, optimizer, tokens, step


def test_the_peak_is_the_allocators_within_one_percent():
    model, optimizer, tokens, step = transformer_step()
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    resident = sum(tensor.untyped_storage().nbytes() for tensor in [*model.parameters(), *state, tokens])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    live = allocator = resident
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            allocator = max(allocator, live)
    optimizer.zero_grad()
    assert peak_of(model, step, optimizer).total_bytes == pytest.approx(allocator, rel=0.01)


def test_a_dry_run_on_fake_tensors_gives_the_same_peak():
    def peak():
        model, optimizer, _, step = transformer_step()
        return peak_of(model, step, optimizer)

    real = peak()
    with FakeTensorMode():
        assert peak() == real


def test_the_step_computes_the_same_under_the_tracker_and_leaves_no_hooks():
    results = []
    for tracked in (False, True):
        torch.manual_seed(0)
        model, optimizer, _, step = transformer_step()
        if tracked:
            peak_of(model, step, optimizer)
            assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
        else:
            step()
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_a_failed_step_leaves_no_hooks():
    model, resize = Plain(), torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="planted"), MemoryTracker(model):
        raise RuntimeError("planted")
    assert torch.UntypedStorage.resize_ is resize
    assert not model._forward_pre_hooks


def test_other_devices_do_not_count():
    model = Plain()
    with MemoryTracker(model, device="cpu") as tracker:
        torch.empty(FLOATS, device="meta").sum()
    assert tracker.peak().total_bytes == 4 * 4
    assert set(tracker.peak().by_category) == set(CATEGORIES)


def test_reserved_memory_of_a_step_does_not_begin_with_what_earlier_ones_left_in_the_cache(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty the cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: done.append(f"new peaks on {device}"))
    reset_cuda_memory(0)
    assert done == ["empty the cache", "new peaks on 0"]
