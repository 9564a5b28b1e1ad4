"""The schedule of a layout's pipeline, played without a machine, as a trace to zoom into."""

from __future__ import annotations

from clusterbench.cases.pipelines import MOST_MICROBATCHES, of_stages
from clusterbench.drawing.chrome_trace import ChromeTrace
from clusterbench.errors import SuiteError, nearest
from clusterbench.expected.bubble import forwards
from clusterbench.formulas.schedules import SCHEDULES, default_chunks, objection, order
from clusterbench.formulas.schedules.timeline import play
from clusterbench.job.passes import Computed
from clusterbench.layout_view import LayoutView
from clusterbench.layout_view.verb import MICRO_BATCHES
from clusterbench.parallel import active_in, from_options

_FORWARD_S = 1e-3
"""Of the mean stage: nothing is known of its speed."""


def planned_trace(view: LayoutView, schedule: str) -> ChromeTrace:
    """A thread for each rank of the pipeline. Messages cost nothing, and both parts of a backward a forward each.

    With a job stages are as long as what they multiply, otherwise equal; their mean forward is shown as 1 ms.

    Raises
    ------
    SuiteError
        If the layout has no pipeline, or the schedule cannot run it.
    """
    layout, job = view.layout, view.job
    if not layout.uses("pp"):
        raise SuiteError(f"--trace shows the schedule of a pipeline, and {layout} has none.")
    if schedule not in SCHEDULES:
        raise SuiteError(
            f"there is no schedule '{schedule}'.{nearest(schedule, SCHEDULES)}\nSchedules: {', '.join(SCHEDULES)}."
        )
    chunks = default_chunks(schedule)
    micro_batches = MICRO_BATCHES * layout.pp if job is None else job.gradient_accumulation_steps
    if micro_batches > MOST_MICROBATCHES:
        raise SuiteError(
            f"--trace plays {MOST_MICROBATCHES:,} micro-batches at most, and a step has {micro_batches:,}."
        )
    active = active_in(layout, from_options({"schedule": schedule}))
    why = objection(schedule, layout.pp, micro_batches, chunks)
    if job is not None and why is None:
        why = next(filter(None, (parallelism.objection(job) for parallelism in active)), None)
    if why is not None:
        raise SuiteError(f"{layout} cannot be run as {schedule}: {why.removesuffix('.')}.")
    work = [1.0] * layout.pp * chunks if job is None else forwards(active, job)
    seconds = [_FORWARD_S * len(work) * each / sum(work) for each in work]
    timeline = play(order(schedule, layout.pp, micro_batches, chunks), dict.fromkeys("FIW", seconds))
    actions = {
        tuple(sorted({played.action.stage for played in rank})): [
            Computed(*played.action, played.start_s, played.end_s) for played in rank
        ]
        for rank in timeline.ranks
    }
    label = f"{micro_batches} micro-batches; the mean forward is shown as 1 ms, messages are free"
    return ChromeTrace([of_stages(f"{schedule}, simulated", actions, label)], {"layout": str(layout)})
