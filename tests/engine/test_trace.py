import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from clusterbench.engine.trace import STEP, Event, exposure, intervals, trace_step
from tests.ranks import run_ranks

NUMEL = 8 * 2**20  # 32 MiB: tens of milliseconds on this kind of machine


def cpu(name, start_s, end_s, thread=1, annotation=False):
    return Event(name, start_s, end_s, thread, annotation=annotation)


def gpu(name, start_s, end_s, annotation=False):
    return Event(name, start_s, end_s, on_device=True, annotation=annotation)


def step(end_s=10.0):
    return cpu(STEP, 0.0, end_s, annotation=True)


def test_a_transfer_on_a_worker_thread_is_exposed_where_no_operator_runs():
    trace = intervals([step(), cpu("gloo:all_reduce", 1, 5, thread=2, annotation=True), cpu("aten::mm", 2, 4)], "cpu")
    assert exposure(trace).exposed_s == 2.0
    assert exposure(trace).overlap_fraction == 0.5


def test_an_operator_that_waits_inside_is_no_compute_but_its_other_parts_are():
    events = [step(), cpu("aten::linear", 0, 8), cpu("_c10d_functional::wait_tensor", 1, 5), cpu("aten::addmm", 5, 8)]
    assert intervals(events, "cpu").compute == ((5.0, 8.0),)


def test_copies_inside_a_collective_are_no_compute():
    events = [step(), cpu("_c10d_functional::all_reduce", 0, 4), cpu("aten::clone", 1, 3), cpu("aten::mm", 5, 6)]
    assert intervals(events, "cpu").compute == ((5.0, 6.0),)


def test_ranges_of_autograd_and_users_are_no_compute_in_themselves():
    events = [
        step(),
        cpu("autograd::engine::evaluate_function: AddmmBackward0", 0, 4),
        cpu("aten::mm", 1, 2),
        cpu("FSDP::pre_forward (layers.0)", 4, 8, annotation=True),
        cpu("aten::copy_", 5, 6),
    ]
    assert intervals(events, "cpu").compute == ((1.0, 2.0), (5.0, 6.0))


def test_operators_of_other_threads_are_no_compute():
    assert intervals([step(), cpu("aten::add_", 1, 2, thread=2)], "cpu").compute == ()


def test_kernels_of_nccl_are_communication_and_the_others_compute():
    events = [
        step(),
        cpu("aten::mm", 0, 9),
        gpu("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1, 5),
        gpu("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 3, 6),
        gpu("Memcpy HtoD (Pinned -> Device)", 6, 7),
    ]
    trace = intervals(events, "cuda")
    assert (trace.communication, trace.compute) == (((1.0, 5.0),), ((3.0, 6.0),))


def test_ranges_copied_to_the_device_are_neither():
    events = [step(), gpu(STEP, 0, 10, annotation=True), gpu("nccl:all_reduce", 1, 5, annotation=True)]
    trace = intervals(events, "cuda")
    assert (trace.communication, trace.compute) == ((), ())


def test_what_happened_around_the_step_is_cut_off():
    events = [cpu(STEP, 4, 6, annotation=True), cpu("gloo:all_reduce", 3, 5, thread=2, annotation=True)]
    assert intervals(events, "cpu").communication == ((0.0, 1.0),)


def test_a_step_without_communication_exposes_none():
    seen = exposure(trace_step(lambda: torch.ones(300, 300) @ torch.ones(300, 300)))
    assert (seen.communication_s, seen.exposed_s, seen.overlap_fraction) == (0.0, 0.0, None)
    assert 0 < seen.compute_s <= seen.step_s


def synchronous():
    data, a = torch.ones(NUMEL), torch.ones(400, 400)

    def step():
        a @ a
        dist.all_reduce(data)
        a @ a

    step()
    return exposure(trace_step(step))


def overlapped():
    data, a = torch.ones(NUMEL), torch.ones(400, 400)

    def step():
        work = dist.all_reduce(data, async_op=True)
        while not work.is_completed():
            a @ a
        work.wait()

    step()
    return exposure(trace_step(step))


def message():
    data, me = torch.ones(NUMEL), dist.get_rank()

    def step():
        if me == 0:
            dist.send(data, 1)
        else:
            dist.recv(data, 0)

    step()
    return exposure(trace_step(step))


def waited_in_dtensor_style():
    data = torch.ones(NUMEL)

    def step():
        functional.all_reduce(data, "sum", dist.group.WORLD).add(1.0)

    step()
    return exposure(trace_step(step))


@pytest.mark.gloo
@pytest.mark.parametrize("case", [synchronous, message, waited_in_dtensor_style], ids=lambda case: case.__name__)
def test_what_the_step_waits_for_is_exposed(case):
    for seen in run_ranks(2, case):
        assert seen.exposed_s > 0.95 * seen.communication_s > 1e-3
        assert seen.communication_s + seen.compute_s <= 1.02 * seen.step_s


@pytest.mark.gloo
def test_what_runs_under_compute_is_less_exposed():
    for seen in run_ranks(2, overlapped):
        assert seen.exposed_s < 0.5 * seen.communication_s
        assert seen.overlap_fraction > 0.5


def test_wait_is_what_it_was_after_a_trace():
    before = vars(dist.Work)["wait"]
    trace_step(lambda: None)
    assert vars(dist.Work)["wait"] is before
