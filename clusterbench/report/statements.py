"""What a run is evidence for, and what it is not."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import cores_of
from clusterbench.expected.fits import NOT_SEEN
from clusterbench.words import plural

_OVER_NETWORK = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "link_matrix", "perftest")


def can_say(reading: Reading) -> list[str]:
    """Statements the figures support."""
    return list(_can(reading))


def cannot_say(reading: Reading) -> list[str]:
    """Statements a reader might draw from the figures, and must not."""
    return list(_cannot(reading))


def _can(reading: Reading) -> Iterator[str]:
    metrics = {metric for metric, rows in reading.by_metric.items() if any(row.value is not None for row in rows)}
    on_cpu = reading.plan.cluster.device == "cpu"
    if not metrics:
        yield "Nothing: no case has a figure."
        return
    if reading.is_imported:
        yield "What its source says: figures were taken over as they stand there, and nothing was run or checked here."
        return
    if reading.is_dry:
        yield (
            "Memory: what is alive in a step of each layout, by category and at its peak; the step is the one that a "
            "run would time, on tensors that have a shape and no data."
        )
        yield "Traffic: every collective of a step with its bytes, and how many wait for one another."
        return
    if _proven(reading):
        unproven = len(reading.unproven)
        those = "that" if unproven == 1 else "those"
        whose = f"each layout but {those} of {plural(unproven, 'case')}" if unproven else "each layout"
        yield (
            f"Correctness: {whose} was held against one rank on a small twin of the model before it was timed; the "
            "deviations stand in the parity columns beside their tolerance."
        )
    if "peak_memory" in metrics:
        yield "Memory: peaks by category come from live storages, and hold for this model, batch and layout" + (
            " on a CPU; a GPU's allocator adds its own rounding and reserve." if on_cpu else "."
        )
    if "traffic_bytes" in metrics:
        yield "Traffic: bytes per axis are counted where PyTorch dispatches them, and are the same on any machine."
    if "executed_flops" in metrics:
        yield (
            "Arithmetic: the FLOPs of each rank are counted operator by operator in one untimed step, and held against "
            "what the layout asks of it."
        )
    if on_cpu:
        yield "Method: the same code runs under NCCL on GPUs, with the same checks, files and report."
    elif not reading.shares_gpus:
        yield f"Speed: of this job on these {reading.plan.cluster.gpu_name or 'GPUs'}, as they were during the run."


def _proven(reading: Reading) -> set[str]:
    """Cases that were wholly held against one rank, as the verdict counts them."""
    rows = reading.rows_of("parity_loss", "parity_gradients")
    return {row.case for row in rows if row.value is not None} - reading.unproven.keys()


def _network_without_floor(reading: Reading) -> bool:
    """Whether bytes were timed between hosts, and no such figure was held against a bound."""
    between = [
        history.case
        for history in reading.histories
        if history.case.num_nodes > 1
        and history.case.benchmark in _OVER_NETWORK
        and history.case.point.get("axis") != "tp"
        and history.pooled is not None
    ]
    return bool(between) and not any(floor.bound is not None for case in between for floor in case.floors)


def _cannot(reading: Reading) -> Iterator[str]:
    cluster = reading.plan.cluster
    yield from (f"What steps should have taken: {why}." for why in reading.prices.unused)
    if reading.is_dry:
        yield "Speed: nothing was computed and nothing sent."
        yield "That each step computes the right thing: a run on a machine proves it before it is timed."
        yield NOT_SEEN.replace("Not seen: t", "T")
        return
    if reading.shares_gpus:
        yield f"Speed: {cluster.ranks_per_gpu} ranks share each GPU and wait for one another."
    if alone := len(reading.lone_ranks):
        cases = "a case" if alone == 1 else f"{alone:,} cases"
        yield (
            f"Speed of the layouts of {cases} with communication: fake, of which one rank computed alone and nothing "
            "was sent. Nor are they proven: what others would have sent has no meaning."
        )
    elif reading.unproven and not _proven(reading):
        yield "That each step computes the right thing: no training case is proven, and the verdict says why."
    layouts = " ".join(str(history.case.layout or "") for history in reading.histories)
    if cluster.device == "cpu" and not reading.is_imported:
        yield (
            "Cluster speed: the ranks are CPU processes that talk over Gloo. How throughput falls with more ranks here "
            "says nothing about GPUs and their links."
        )
        if "+sp" in layouts or "zero" in layouts:
            yield (
                "That sequence parallelism or ZeRO is slow: Gloo's reduce-scatter is an all-reduce underneath, so both "
                "pay here for what they save over NCCL."
            )
        cores, most = cores_of(reading.environment), max((h.case.world_size for h in reading.histories), default=0)
        if cores and most > cores:
            yield (
                f"Scaling beyond {cores} ranks: up to {most} ranks shared {cores} cores, so they took turns instead of "
                "working side by side."
            )
    if reading.is_imported:
        yield "That each result was right: whatever the source proved is not in its figures."
    elif cluster.num_nodes == 1:
        yield "Links between nodes: everything ran on one."
    elif cluster.device == "cuda" and _network_without_floor(reading):
        yield (
            "Whether the network between hosts is as fast as it should be: its links were compared with each other, "
            "and no figure is at hand that they must reach. Write one under at_least of what runs over several hosts "
            "(busbw: 300 GB/s), or name a baseline."
        )
    if reading.is_imported:
        if all(len(history.observations) < 2 for history in reading.histories):
            yield "Whether a small difference would repeat: every case has one figure. Import several runs of the tool."
    elif reading.plan.repeats == 1 and not reading.plan.for_s and reading.histories:
        yield "Whether a small difference would repeat: every case was measured once. Set repeats in the suite."
    yield from dict.fromkeys(
        f"{row.metric.upper()} against the {row.detail.get('peak', '')} peak: {row.basis.rstrip('.')}."
        for row in reading.rows_of("mfu", "hfu")
        if row.value is None and row.basis
    )
    open_cases = sum(history.pooled is None for history in reading.histories)
    if open_cases:
        which = "one case" if open_cases == 1 else f"{open_cases:,} cases"
        yield f"Anything about the {which} without a figure; the table says why."
