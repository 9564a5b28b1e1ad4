from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from clusterbench.engine.trace import STEP, Event, StepTrace, exposure, intervals, trace_step
from clusterbench.engine.trace import _event as as_event
from clusterbench.engine.trace import _groups as call_groups
from clusterbench.engine.traffic import TrafficCounter
from clusterbench.engine.transfers import MESSAGE, WAIT, LibraryCalls, PeerMessage, listed
from tests.ranks import run_ranks

NUMEL = 8 * 2**20  # 32 MiB: tens of milliseconds on this kind of machine


def cpu(name, start_s, end_s, thread=1, annotation=False):
    return Event(name, start_s, end_s, thread, annotation=annotation)


def gpu(name, start_s, end_s, annotation=False):
    return Event(name, start_s, end_s, on_device=True, annotation=annotation)


def step(end_s=10.0):
    return cpu(STEP, 0.0, end_s, annotation=True)


def gloo(start_s, end_s, thread):
    return cpu("gloo:all_reduce", start_s, end_s, thread, annotation=True)


def noted(name, number, start_s, end_s):
    return cpu(f"{name} {number}", start_s, end_s, annotation=True)


def nccl(start_s, end_s, group="", stream=7, what="AllReduce_Sum_bf16_RING_LL"):
    return Event(f"ncclDevKernel_{what}", start_s, end_s, stream, on_device=True, group=group)


def shown(trace: StepTrace):
    return [tuple(each) for each in trace.shown]


def transfers(trace: StepTrace):
    return [(transfer.axis, transfer.way, transfer.exposed_s, transfer.duration_s) for transfer in trace.transfers]


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


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "nvshmemi_proxy_quiet_entrypoint",
        "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        "void two_shot_all_reduce_kernel<float, 16, 8>(float**)",
        "Memcpy PtoP (Device -> Device)",
    ],
)
def test_kernels_that_reach_other_gpus_by_themselves_are_communication(name):
    trace = intervals([step(), gpu(name, 1, 5), gpu("void at::native::softmax<float>()", 6, 7)], "cuda")
    assert (trace.communication, trace.compute) == (((1.0, 5.0),), ((6.0, 7.0),))


def test_ranges_copied_to_the_device_are_neither():
    events = [step(), gpu(STEP, 0, 10, annotation=True), gpu("nccl:all_reduce", 1, 5, annotation=True)]
    trace = intervals(events, "cuda")
    assert (trace.communication, trace.compute) == ((), ())


def test_what_happened_around_the_step_is_cut_off():
    events = [cpu(STEP, 4, 6, annotation=True), cpu("gloo:all_reduce", 3, 5, thread=2, annotation=True)]
    assert intervals(events, "cpu").communication == ((0.0, 1.0),)


def test_a_transfer_behind_the_step_and_one_it_waits_for_have_their_own_axes_and_moments():
    events = [
        step(),
        cpu("c10d::allreduce_", 0.5, 1),
        gloo(1, 8, thread=2),
        cpu("aten::mm", 1, 3),
        cpu("_c10d_functional::all_reduce", 3, 4),
        gloo(3.5, 5, thread=3),
        cpu("_c10d_functional::wait_tensor", 4, 6),
        cpu("aten::mm", 6, 7),
    ]
    trace = intervals(events, "cpu", LibraryCalls({}, [("all_reduce", "dp"), ("all_reduce", "tp")]))
    assert transfers(trace) == [("dp", "", 0.5 + 1.0, 7.5), ("tp", "", 3.0, 3.0)]
    assert exposure(trace).exposed_s == 4.5


def test_a_message_lasts_while_it_is_handed_over_and_waited_for():
    events = [
        step(),
        noted(MESSAGE, 0, 1, 2),
        cpu("c10d::send", 1, 2),
        cpu("gloo:send", 1.5, 8, annotation=True),  # until somebody waited for it
        cpu("aten::mm", 2, 4),
        noted(MESSAGE, 1, 4, 4.5),
        noted(WAIT, 1, 4.5, 7),
        noted(WAIT, 0, 7, 8),
    ]
    trace = intervals(events, "cpu", LibraryCalls({}, [], [PeerMessage("pp", "0>1", 0), PeerMessage("pp", "1>0", 1)]))
    assert transfers(trace) == [("pp", "0>1", 2.0, 2.0), ("pp", "1>0", 3.0, 3.0)]


def test_calls_that_were_not_listed_are_seen_without_an_axis():
    events = [step(), cpu("c10d::allreduce_", 0, 1), gloo(1, 2, thread=2)]
    assert transfers(intervals(events, "cpu")) == [("?", "", 2.0, 2.0)]


def test_a_kernel_of_nccl_is_of_its_group_or_else_of_its_stream():
    events = [
        step(),
        nccl(0, 2, group="3"),
        nccl(2, 3, group="5", stream=9),
        nccl(4, 6, stream=9),
        gpu("sm90_xmma_gemm", 5, 7),
    ]
    trace = intervals(events, "cuda", LibraryCalls({"3": "tp", "5": "dp"}))
    assert transfers(trace) == [("tp", "", 2.0, 2.0), ("dp", "", 1.0, 1.0), ("dp", "", 1.0, 2.0)]


def test_of_two_kernels_at_once_the_later_shows():
    trace = intervals(
        [step(), nccl(0, 9, group="5"), nccl(2, 4, group="3", stream=8)], "cuda", LibraryCalls({"3": "tp", "5": "dp"})
    )
    assert transfers(trace) == [("dp", "", 7.0, 9.0), ("tp", "", 2.0, 2.0)]


def test_a_kernel_with_several_messages_is_theirs_in_equal_parts():
    events = [step(), nccl(0, 1, "4", what="SendRecv"), nccl(2, 6, "4", what="SendRecv"), nccl(7, 8, "4")]
    library_calls = LibraryCalls(
        {"4": "pp"}, [], [PeerMessage("pp", "0>1", 0), PeerMessage("pp", "0>1", 1), PeerMessage("pp", "1>0", 1)]
    )
    assert transfers(intervals(events, "cuda", library_calls)) == [
        ("pp", "0>1", 1.0, 1.0),
        ("pp", "0>1", 2.0, 2.0),
        ("pp", "1>0", 2.0, 2.0),
        ("pp", "", 1.0, 1.0),
    ]


def test_messages_that_are_not_as_many_as_their_kernels_have_no_way():
    library_calls = LibraryCalls({"4": "pp"}, [], [PeerMessage("pp", "0>1", 0), PeerMessage("pp", "0>1", 1)])
    assert transfers(intervals([step(), nccl(0, 1, "4", what="SendRecv")], "cuda", library_calls)) == [
        ("pp", "?", 1.0, 1.0)
    ]


def test_a_step_without_communication_exposes_none():
    exposed = exposure(trace_step(lambda: torch.ones(300, 300) @ torch.ones(300, 300)))
    assert (exposed.communication_s, exposed.exposed_s, exposed.overlap_fraction) == (0.0, 0.0, None)
    assert 0 < exposed.compute_s <= exposed.step_s


def test_what_ran_has_its_name_on_the_row_of_its_axis_and_what_showed_on_one_beside():
    events = [
        cpu(STEP, 1, 11, annotation=True),
        cpu("c10d::barrier", 0, 0.5),  # by which ranks met
        cpu("clusterbench::action F0 of stage 1", 1, 4, annotation=True),
        cpu("c10d::allreduce_", 1.5, 2),
        gloo(2, 9, thread=2),
        cpu("aten::mm", 2, 4),
        noted(MESSAGE, 0, 4, 4.5),
        noted(WAIT, 0, 5, 7),
    ]
    trace = intervals(events, "cpu", LibraryCalls({}, [("all_reduce", "dp")], [PeerMessage("pp", "0>1", 0)]))
    assert shown(trace) == [
        ("compute", "aten::mm", 1, 3),
        ("communication dp, called and waited for", "dp all_reduce", 0.5, 1),
        ("communication pp, called and waited for", "pp 0>1", 3, 3.5),
        ("communication pp, called and waited for", "wait for pp 0>1", 4, 6),
        ("communication dp", "dp all_reduce", 1, 8),
        ("pipeline", "F0 of stage 1", 0, 3),
        ("exposed communication dp", "dp all_reduce", 0.5, 1),
        ("exposed communication pp", "pp 0>1", 3, 3.5),
        ("exposed communication pp", "pp 0>1", 4, 6),
        ("exposed communication dp", "dp all_reduce", 3.5, 4),
        ("exposed communication dp", "dp all_reduce", 6, 8),
    ]
    assert exposure(trace).exposed_s == 5.5


def test_kernels_are_shown_by_their_names_and_actions_as_the_host_starts_them():
    long = "void at::native::vectorized_elementwise_kernel<4, " + "at::native::AddFunctor<float>, " * 9
    action = "clusterbench::action B0 of stage 0"
    events = [
        step(),
        cpu(action, 0, 1, annotation=True),
        gpu(action, 2, 3, annotation=True),
        gpu(long, 1, 2),
        nccl(1.5, 4, group="3"),
    ]
    trace = intervals(events, "cuda", LibraryCalls({"3": "tp"}))
    assert shown(trace) == [
        ("compute", f"{long.removeprefix('void ')[:77]}...", 1, 2),
        ("communication tp", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1.5, 4),
        ("pipeline", "B0 of stage 0", 0, 1),
        ("exposed communication tp", "tp ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2, 4),
    ]


def test_ranks_meet_before_the_step_and_the_profiler_runs_then():
    said = []
    trace_step(lambda: said.append("step"), meet=lambda: said.append(torch.autograd._profiler_enabled()))
    assert said == [True, "step"]


class Raw:
    """An event as torch's profiler hands it over."""

    def __init__(self, name, start_ns, duration_ns, **more):
        self.values = {
            "name": name,
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "start_thread_id": 1,
            "device_resource_id": 0,
            "device_type": SimpleNamespace(name="CPU"),
            "is_user_annotation": False,
            "correlation_id": 0,
            "linked_correlation_id": 0,
            "extra_meta": {},
            **more,
        }

    def __getattr__(self, name):
        if name not in self.values:
            raise AttributeError(name)
        return lambda: self.values[name]


def test_a_kernel_has_the_group_of_the_call_that_launched_it():
    # as of torch 2.11: the range of NCCL's calls holds the group's name in quotes, and kernels are linked to it
    cuda = {"device_type": SimpleNamespace(name="CUDA"), "device_resource_id": 20}
    call = Raw(
        "record_param_comms", 2000, 100, correlation_id=77, extra_meta={"Process Group Name": '"12"', "dtype": "Float"}
    )
    kernel = Raw("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3000, 500, linked_correlation_id=77, **cuda)
    matmul = Raw("sm90_xmma_gemm", 4000, 500, linked_correlation_id=5, **cuda)
    groups = call_groups([call, kernel, matmul])
    assert groups == {77: "12"}
    event = as_event(kernel, 1000, groups)
    assert (event.group, event.thread, event.on_device) == ("12", 20, True)
    assert (event.start_s, event.end_s) == (pytest.approx(2e-6), pytest.approx(2.5e-6))
    assert as_event(matmul, 1000, groups).group == ""


def test_calls_of_a_torch_that_tells_no_groups_are_skipped():
    call = Raw("record_param_comms", 2000, 100, correlation_id=77)
    del call.values["extra_meta"]
    assert call_groups([call]) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_step_of_one_gpu_computes_on_it_and_transfers_nothing():
    a = torch.ones(2048, 2048, device="cuda")
    a @ a
    trace = trace_step(lambda: a @ a, "cuda", {"0": "dp"})
    assert exposure(trace).compute_s > 0
    assert trace.transfers == ()


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
    for exposed in run_ranks(2, case):
        assert exposed.exposed_s > 0.95 * exposed.communication_s > 1e-3
        assert exposed.communication_s + exposed.compute_s <= 1.02 * exposed.step_s


@pytest.mark.gloo
def test_what_runs_under_compute_is_less_exposed():
    for exposed in run_ranks(2, overlapped):
        assert exposed.exposed_s < 0.5 * exposed.communication_s
        assert exposed.overlap_fraction > 0.5


def two_groups():
    """An all-reduce over all ranks goes on while those of the halves are waited for, and messages pass between."""
    me, both = dist.get_rank(), dist.new_group([0, 1, 2, 3])
    half = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][me // 2]
    large, small = torch.ones(NUMEL), torch.ones(1000)

    def step():
        behind = dist.all_reduce(large, group=both, async_op=True)
        for _ in range(5):
            functional.all_reduce(small, "sum", half).add(1.0)
        if me % 2:
            dist.recv(small, group=half, group_src=0)
        else:
            dist.send(small, group=half, group_dst=1)
        behind.wait()

    axes = {both.group_name: "dp", half.group_name: "tp"}
    with TrafficCounter(axes) as counter:
        step()
    trace = trace_step(step, "cpu", axes, listed(counter))
    return (
        [(transfer.axis, transfer.way) for transfer in trace.transfers],
        sum(transfer.exposed_s for transfer in trace.transfers),
        exposure(trace),
    )


@pytest.mark.gloo
def test_every_transfer_has_its_axis_and_what_they_expose_is_the_exposed_communication():
    for transfers_of_rank, exposed_s, whole in run_ranks(4, two_groups):
        assert transfers_of_rank == [("dp", ""), *[("tp", "")] * 5, ("tp", "0>1")]
        assert exposed_s == pytest.approx(whole.exposed_s)


def test_torch_is_what_it_was_after_a_trace():
    watched = [(dist.Work, "wait"), (dist.ProcessGroup, "send"), (dist.ProcessGroup, "_end_coalescing")]
    before = [vars(kind)[name] for kind, name in watched]
    trace_step(lambda: None)
    assert [vars(kind)[name] for kind, name in watched] == before
