"""The verb ``run --dry``: the training cases of a suite on tensors without data, as an ordinary run folder."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Literal

from clusterbench.benchmarks._tokens import is_fed
from clusterbench.benchmarks.dry_step import DryStep, expected_of_dry
from clusterbench.benchmarks.train_step import job_of
from clusterbench.cluster import Cluster, Found, MachineOptions, decide_cluster
from clusterbench.dry import objection, stage_ranks
from clusterbench.dry.processes import DryRunFailed, DryTask, dry_answers
from clusterbench.dry.verb import AskedDryRun
from clusterbench.engine.telemetry import found_here
from clusterbench.errors import SuiteError
from clusterbench.job.dry import DRY, DryRank
from clusterbench.launch.ending import EndingSignals, Interrupted, Interruption, output_that_may_close
from clusterbench.launch.executions import Execution
from clusterbench.launch.progress import ClosingProgress, progress_on
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.measured.speed import LONE_RANK
from clusterbench.parallel import from_options
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder, default_path
from clusterbench.run_folder.passes import as_json
from clusterbench.suite import Suite, load_suite, suite_of
from clusterbench.terminal import tell
from clusterbench.trainers import trainer_of
from clusterbench.types import Case, Observation, Outcome, Plan, Refusal
from clusterbench.words import plural

NO_HOST = "no host"
"""On which a dry run's ranks ran."""

Answers = Mapping[DryTask, DryRank | DryRunFailed]


def run_dry(
    path: Path, machine: MachineOptions, out: Path | None = None, fail_on: tuple[str, ...] | None = None
) -> int:
    """Runs the training cases of a suite dry, writes the report, and returns the exit code.

    Parameters
    ----------
    machine
        What is planned for; as many nodes as the suite asks for, where it does not say.

    Raises
    ------
    SuiteError
        For what ``clusterbench plan`` objects to, and where no case trains.
    RunFolderError
        If ``out`` is not empty or cannot be written.
    """
    from clusterbench.report import render_report  # pandas and matplotlib, and not for an agent

    suite = load_suite(path)
    plan = plan_of(suite, machine, found_here())
    if not plan.cases:
        raise SuiteError(f"{path}: nothing of it can be run dry: {_first_reason(plan)}")
    folder = _created(suite, plan, out)
    tasks = {case.hash: tasks_of(case) for case in plan.cases}
    num_ranks = len(set(chain.from_iterable(tasks.values())))
    words = f"{plural(len(plan.cases), 'case')} to run dry, {plural(num_ranks, 'rank')} in all"
    tell(f"{folder.path}: {words}")
    interruption, stopped = Interruption(), ""
    with EndingSignals(interruption), output_that_may_close(interruption):
        progress = progress_on(sys.stderr)
        try:
            _conduct(folder, plan.cases, tasks, progress)
        except KeyboardInterrupt:
            stopped = interruption.why
        finally:
            interruption.only_noted()  # the report is written in any case
            progress.close()
        report = render_report(folder, fail_on)
    tell(f"{report.text}\nreport: {report.link}")
    if not stopped:
        return report.verdict.exit_code
    tell(f"stopped before the end: {stopped}; everything finished is in {folder.path}.")
    return report.verdict.exit_code or Interrupted.exit_code


def store_dry_run(asked: AskedDryRun, out: Path) -> tuple[Sequence[DryRank], str]:
    """Runs what ``dry-run`` is asked and stores it as a run folder; returns its ranks and the link to its page.

    The page is written in any case: a rank that fails is the outcome, and where it is interrupted nothing has run.

    Raises
    ------
    RunFolderError
        If ``out`` is not empty or cannot be written, before anything is run.
    DryRunFailed
        If a rank fails.
    Interrupted
        If a signal asks it to end.
    """
    from clusterbench.report import render_report

    suite = suite_of(asked.suite.encode(), "dry-run")
    device: Literal["cpu", "cuda"] = "cuda" if asked.job.device == "cuda" else "cpu"
    gpu_name = None if asked.card is None else asked.card.nvml_names[0]
    cluster = Cluster(asked.num_nodes, asked.gpus_per_node, device, gpu_name)
    plan = dry_plan(make_plan(suite, cluster))
    if not plan.cases:
        raise SuiteError(f"{asked.job.layout} cannot be stored: {_first_reason(plan)}")
    folder = _created(suite, plan, out)
    (case,) = plan.cases
    interruption = Interruption()
    with EndingSignals(interruption):
        try:
            done = asked.done()
            interruption.only_noted()
            folder.record(*_of_ranks(case, done))
        except DryRunFailed as failed:
            folder.record(_failed(case, failed), None)
            raise
        except KeyboardInterrupt:
            raise Interrupted(f"stopped before the end: {interruption.why}.") from None
        finally:
            interruption.only_noted()
            report = render_report(folder, None)
    return done, report.link


def _created(suite: Suite, plan: Plan, out: Path | None) -> RunFolder:
    path = out or default_path(Path("reports"), plan.suite, datetime.now())
    return RunFolder.create(path, suite.text, plan, {"dry run": {}}, named_files=suite.named_files)


def plan_of(suite: Suite, machine: MachineOptions, found: Found) -> Plan:
    """The training cases of a suite on as many nodes as it asks for, where ``machine`` does not say."""
    cluster = decide_cluster(machine, found, suite.cpu.num_ranks)
    num_nodes = machine.num_nodes or max(suite.on(cluster.device).num_nodes or (1,))
    return dry_plan(make_plan(suite, replace(cluster, num_nodes=num_nodes)))


def dry_plan(plan: Plan) -> Plan:
    """The same with training cases as dry ones, and a refusal for whatever else there is."""
    planned = [_dry(case) for case in plan.cases]
    return replace(
        plan,
        repeats=1,
        for_s=0.0,
        cases=tuple(each for each in planned if isinstance(each, Case)),
        refusals=(*plan.refusals, *(each for each in planned if isinstance(each, Refusal))),
    )


def tasks_of(case: Case) -> Sequence[DryTask]:
    """One rank of each place along pp."""
    job, every = job_of(case.point, case.device), from_options(case.point)
    # Neither a seed nor a proof changes what a step holds or sends: cases that differ in them have the same tasks.
    same = replace(job, seed=0)
    ranks = stage_ranks(same, case.rank_order)
    return [DryTask(trainer_of(case.point), same, every, case.rank_order, rank) for rank in ranks]


def _dry(case: Case) -> Case | Refusal:
    reason = f"{case.benchmark} measures a machine, and a dry run has none: it is of train_step"
    if case.benchmark == LONE_RANK:
        reason = "a rank that is to compute has no dry run: with communication: real each rank of its layout has one"
    if case.benchmark == NODE_STEP:
        reason = "on every node it is the step of one: its layout has a dry run on one node"
    if case.benchmark == "train_step":
        trainer, job = trainer_of(case.point), job_of(case.point, case.device)
        reason = trainer.needs_data or objection(job, from_options(case.point)) or ""
        if is_fed(case.point):
            reason = "a dry run has no disk from which tokens are read: with tokens: resident the step holds as much"
    if reason:
        return Refusal(case.id, case.benchmark, case.point, case.num_nodes, f"{reason}.", case.source)
    return replace(
        case,
        id=case.id.replace("train_step/", "dry_step/", 1),
        benchmark="dry_step",
        version=DryStep.version,
        iterations=1,
        warmup=0,
        repeats=1,
        expected=expected_of_dry(case),
        expected_outcomes=(),
        floors=(),
    )


def _first_reason(plan: Plan) -> str:
    return plan.refusals[0].reason if plan.refusals else "it has no case."


def _conduct(
    folder: RunFolder, cases: Sequence[Case], tasks: Mapping[str, Sequence[DryTask]], progress: ClosingProgress
) -> None:
    """Puts each case on disk when all of its ranks are known, in the order of the plan."""
    waiting, answers = deque(enumerate(cases, 1)), dict[DryTask, DryRank | DryRunFailed]()
    progress.begin(1, len(cases), Execution(cases[0], 0, 1))
    for task, answer in dry_answers(dict.fromkeys(chain.from_iterable(tasks.values()))):
        answers[task] = answer
        while waiting and all(each in answers for each in tasks[waiting[0][1].hash]):
            _, case = waiting.popleft()
            outcome, observation = _recorded(case, tasks[case.hash], answers)
            folder.record(outcome, observation)
            progress.end(outcome, None)  # its seconds are those of counting
            for number, following in list(waiting)[:1]:
                progress.begin(number, len(cases), Execution(following, 0, 1))


def _recorded(case: Case, tasks: Sequence[DryTask], answers: Answers) -> tuple[Outcome, Observation | None]:
    failed = [answer for answer in map(answers.__getitem__, tasks) if isinstance(answer, DryRunFailed)]
    return (_failed(case, failed[0]), None) if failed else _of_ranks(case, list(_known(tasks, answers)))


def _failed(case: Case, failed: DryRunFailed) -> Outcome:
    return Outcome(case.id, case.hash, 0, 1, "failed", str(failed), started=_now())


def _of_ranks(case: Case, done: Sequence[DryRank]) -> tuple[Outcome, Observation]:
    ranks, spent_s = {rank.rank: rank for rank in done}, sum(rank.spent_s for rank in done)
    records = [as_json(ranks.get(rank)) for rank in range(case.world_size)]
    observation = Observation(
        case.id, case.hash, 0, 1, (NO_HOST,), [[spent_s]] * case.world_size, passes={DRY.name: records}
    )
    return Outcome(case.id, case.hash, 0, 1, "ok", started=_now(), elapsed_s=spent_s), observation


def _known(tasks: Sequence[DryTask], answers: Answers) -> Iterator[DryRank]:
    for answer in map(answers.__getitem__, tasks):
        if isinstance(answer, DryRank):
            yield answer


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
