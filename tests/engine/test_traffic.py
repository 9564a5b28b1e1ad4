import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from clusterbench.engine.grid import Grid
from clusterbench.engine.traffic import Collective, Total, TrafficCounter, totals
from clusterbench.layout import ParallelLayout
from tests.ranks import run_ranks

pytestmark = pytest.mark.gloo


def test_traffic_is_size_times_bus_factor_per_axis_and_op():
    records = [Collective("all_reduce", "dp", 800, "float32", 4)] * 2 + [Collective("all_gather", "tp", 100, "int8", 2)]
    assert totals(records) == {("dp", "all_reduce"): Total(2, 1600, 2400.0), ("tp", "all_gather"): Total(1, 100, 50.0)}


def test_a_message_is_on_the_link_of_the_rank_that_sends_it():
    records = [Collective("send", "pp", 640, "float32", 4), Collective("recv", "pp", 320, "float32", 4)]
    assert totals(records) == {("pp", "send"): Total(1, 640, 640.0), ("pp", "recv"): Total(1, 320, 0.0)}


def test_nothing_leaves_a_group_of_one():
    assert totals([Collective("broadcast", "tp", 100, "float32", 1)])["tp", "broadcast"].traffic_bytes == 0.0


def test_an_op_without_a_factor_has_no_traffic():
    record = Collective("c10d::new_op_", "tp", 100, "float32", 2)
    assert totals([record, record])["tp", "c10d::new_op_"] == Total(2, 200, None)


def plain_calls():
    n, me = dist.get_world_size(), dist.get_rank()
    pair = dist.new_group([0, 1])
    ones, whole = torch.ones(8), torch.ones(8 * n)
    with TrafficCounter() as counter:
        dist.all_reduce(ones)
        dist.all_reduce(ones.double(), group=pair)
        dist.all_gather([torch.empty(8) for _ in range(n)], ones)
        dist.reduce_scatter(torch.empty(8), list(whole.chunk(n)))
        dist.all_to_all_single(torch.empty(2 + 4 * me), torch.ones(4), [1 + 2 * me] * n, [1, 3])
        dist.broadcast(ones, 0)
        dist.reduce(ones, 0)
        swaps = [dist.P2POp(dist.isend, ones, 1 - me), dist.P2POp(dist.irecv, torch.empty(8), 1 - me)]
        for work in dist.batch_isend_irecv(swaps):
            work.wait()
        dist.barrier()
    return [(sent.op, sent.axis, sent.size_bytes, sent.dtype, sent.group_size) for sent in counter.collectives]


def test_each_call_is_recorded_in_order_with_the_larger_of_what_goes_in_and_out():
    first, second = run_ranks(2, plain_calls)
    before = [
        ("all_reduce", "world", 32, "float32", 2),
        ("all_reduce", "?", 64, "float64", 2),
        ("all_gather", "world", 64, "float32", 2),
        ("reduce_scatter", "world", 64, "float32", 2),
    ]
    after = [
        ("broadcast", "world", 32, "float32", 2),
        ("reduce", "world", 32, "float32", 2),
        ("send", "world", 32, "float32", 2),
        ("recv", "world", 32, "float32", 2),
        ("barrier", "world", 0),
    ]
    for records, all_to_all_bytes in (first, 16), (second, 24):  # 4 floats in, 2 or 6 out
        assert records[:4] == before
        assert records[4] == ("all_to_all", "world", all_to_all_bytes, "float32", 2)
        assert [*records[5:9], records[9][:3]] == after
        assert len(records) == 10


def make_grid(layout):
    return Grid(ParallelLayout.parse(layout), "megatron", "cpu")


def functional_calls():
    grid = make_grid("cp2")
    group = grid.group("cp")
    part = torch.ones(4, requires_grad=True)
    with TrafficCounter(grid.names()) as counter:
        functional.all_reduce(part.detach(), "sum", group).wait()
        functional.all_reduce_coalesced([torch.ones(4), torch.ones(2)], "sum", group)[0].wait()
        functional.all_to_all_single_autograd(part, [2, 2], [2, 2], group).sum().backward()
        functional.broadcast(torch.ones(4), 0, group).wait()
    return [(sent.op, sent.axis, sent.size_bytes) for sent in counter.collectives]


def test_functional_collectives_are_seen_in_forward_and_backward_once_each():
    assert run_ranks(2, functional_calls)[0] == [
        ("all_reduce", "cp", 16),
        ("all_reduce", "cp", 24),
        ("all_to_all", "cp", 16),
        ("all_to_all", "cp", 16),
        ("broadcast", "cp", 16),
    ]


def ddp(planted):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 32)), bucket_cap_mb=0.03)
    for _ in range(2):  # the first backward finds the order of the buckets
        model(torch.ones(2, 64)).sum().backward()
    with TrafficCounter() as counter:
        model(torch.ones(2, 64)).sum().backward()
        if planted:
            dist.all_reduce(torch.ones(1000))
    total = counter.totals()["world", "all_reduce"]
    return len(counter.collectives), total.count, total.size_bytes, total.traffic_bytes


def test_the_buckets_of_ddps_reducer_carry_every_gradient_once():
    parameters = 64 * 256 + 256 + 256 * 32 + 32
    records, count, size_bytes, traffic_bytes = run_ranks(2, ddp, False)[0]
    assert records == count == 2  # more than one bucket, nothing else
    assert size_bytes == parameters * 4
    assert traffic_bytes == parameters * 4  # 2 (n-1)/n = 1 on two ranks


def test_one_planted_all_reduce_changes_the_total():
    clean, planted = run_ranks(2, ddp, False)[0], run_ranks(2, ddp, True)[0]
    assert planted[1] - clean[1] == 1
    assert planted[2] - clean[2] == 4000


def tensor_parallel(sequence):
    grid = make_grid("tp2")
    model = nn.Sequential(nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False))
    edge = Shard(1) if sequence else Replicate()
    plan = {"0": ColwiseParallel(input_layouts=edge), "1": RowwiseParallel(output_layouts=edge)}
    parallelize_module(model, grid.line("tp"), plan)
    x_BSD = torch.ones(2, 4 if sequence else 8, 16, requires_grad=True)
    with TrafficCounter(grid.names()) as counter:
        model(x_BSD).sum().backward()
    return [(sent.op, sent.axis, sent.size_bytes, sent.dtype) for sent in counter.collectives]


def test_a_tensor_parallel_pair_reduces_once_forward_and_once_backward():
    whole = 2 * 8 * 16 * 4
    assert run_ranks(2, tensor_parallel, False)[0] == [("all_reduce", "tp", whole, "float32")] * 2


def test_sequence_parallelism_gathers_and_scatters_in_either_direction():
    whole = 2 * 8 * 16 * 4
    names = ["all_gather", "reduce_scatter", "all_gather", "reduce_scatter"]
    assert run_ranks(2, tensor_parallel, True)[0] == [(name, "tp", whole, "float32") for name in names]


def fsdp():
    grid = make_grid("dp2-cp2")
    flat = grid.line("dp_cp")
    model = nn.Sequential(nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False))
    for layer in model:
        fully_shard(layer, mesh=flat, reshard_after_forward=True)
    fully_shard(model, mesh=flat)
    with TrafficCounter(grid.names()) as counter:
        model(torch.ones(2, 16)).sum().backward()
    return {key: (total.count, total.size_bytes) for key, total in counter.totals().items()}


def test_fsdp_gathers_each_layer_twice_and_scatters_it_once_along_dp_and_cp():
    layer = 16 * 64 * 4
    expected = {("dp_cp", "all_gather"): (4, 4 * layer), ("dp_cp", "reduce_scatter"): (2, 2 * layer)}
    assert run_ranks(4, fsdp)[0] == expected


def zero_1():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns on import, by scripting its own code

    model = nn.Linear(16, 64, bias=False)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    model(torch.ones(2, 16)).sum().backward()
    with TrafficCounter() as counter:
        optimizer.step()
    return [(sent.op, sent.size_bytes) for sent in counter.collectives]


def test_collectives_inside_an_optimizer_are_seen():
    assert ("broadcast", 16 * 64 * 4) in run_ranks(2, zero_1)[0]
