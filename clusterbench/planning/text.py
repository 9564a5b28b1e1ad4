"""A plan as a person reads it before the run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from clusterbench.benchmarks import same_work
from clusterbench.benchmarks.train_step import job_of
from clusterbench.cluster import Cluster
from clusterbench.expected.fits import NOT_SEEN, fit, fit_words
from clusterbench.expected.memory import TOTAL, not_predicted
from clusterbench.parallel import active_in, from_options
from clusterbench.types import NOTHING_SENT, Case, Floor, Plan, Refusal, metric_key
from clusterbench.units import digits, duration, format_value
from clusterbench.words import aligned, comment, few, plural

PEAK = "peak_memory"
WHOLE, WHOLE_OF_ONE = metric_key(PEAK, category=TOTAL), metric_key(PEAK, category=TOTAL, source=NOTHING_SENT)


def plan_text(plan: Plan) -> str:
    """Cases, which of them fit, what is asked of them, what is refused and why; last all that is expected, and why."""
    lines = [*_head(plan), "#", *_cases(plan.cases)]
    if fits := _fits(plan):
        lines += ["#", *fits]
    if any(case.floors for case in plan.cases):
        lines += ["#", *_asked(plan.cases)]
    if plan.refusals:
        lines += ["#", *_refused(plan.refusals)]
    if any(case.expected for case in plan.cases):  # dozens of lines, so behind what decides whether to run
        lines += ["#", *_expected(plan.cases)]
    return "\n".join(lines)


def _head(plan: Plan) -> list[str]:
    question = f": {plan.question}" if plan.question else ""
    times = plural(plan.repeats, "repeat") + (f" or more to fill {duration(plan.for_s)}" if plan.for_s else "")
    counts = f"{plural(len(plan.cases), 'case')}, {times}, {len(plan.refusals)} refused"
    said = (f"{_machine(plan.cluster)}: {counts}", fit_sentence(plan), idle_sentence(plan.cases, plan.cluster))
    return [line for sentence in (f"{plan.suite}{question}", *said) if sentence for line in comment(sentence)]


def fit_sentence(plan: Plan) -> str:
    """How many training cases fit the card by formula; empty where its memory or that of every case is unknown."""
    card = plan.cluster.accelerator
    needed = [needed for case in plan.cases if (needed := _needed(case, plan.cluster)) is not None]
    if card is None or not card.memory_bytes or not needed:
        return ""
    fits = Counter(fit(sharing * of_rank, card.memory_bytes) for sharing, of_rank in needed)
    counts = f"fits {fits['fits']:,}, close {fits['close, measure it']:,}, does not fit {fits['does not fit']:,}"
    return f"memory is predicted of {plural(len(needed), 'training case')}: {counts}"


def idle_sentence(cases: Iterable[Case], cluster: Cluster) -> str:
    """Which nodes no case uses, and what would use them; empty where there are none."""
    most = max((case.num_nodes for case in cases), default=cluster.num_nodes)
    if most >= cluster.num_nodes:
        return ""
    names = f" ({few(cluster.hosts[most:])})" if cluster.hosts else ""
    idle = cluster.num_nodes - most
    return (
        f"idle: {idle:,} of {plural(cluster.num_nodes, 'node')}{names}, as no case uses more than {most}.\n"
        f"hint: add {cluster.num_nodes} to the suite's num_nodes, or leave num_nodes out to use all"
    )


def _machine(cluster: Cluster) -> str:
    name = f" ({cluster.gpu_name})" if cluster.gpu_name else ""
    return cluster.size + name


def _cases(cases: Iterable[Case]) -> list[str]:
    header = ["case", "nodes", "ranks", "iterations", "limit", "asked for by"]
    units = ["", "", "", "", "(s)", ""]
    rows = [
        [case.id, case.num_nodes, case.world_size, case.iterations, f"{case.time_limit_s:.0f}", case.source]
        for case in cases
    ]
    return aligned(header, rows, units)


def _expected(cases: Iterable[Case]) -> list[str]:
    """Every expected value; a basis is said once, however many values rest on it."""
    notes: dict[str, int] = {}
    rows = [
        [case.id, metric, format_value(expected.value, expected.unit), _note(notes, expected.basis)]
        for case in cases
        for metric, expected in case.expected.items()
    ]
    return [*aligned(["case", "metric", "expected", "basis"], rows), *_notes(notes)]


def _fits(plan: Plan) -> list[str]:
    """Whether each training case fits the card, where its memory is known, and why that is not said of others."""
    card = plan.cluster.accelerator
    cases = [case for case in plan.cases if any(key.startswith(PEAK) for key in case.expected)]
    if card is None or not card.memory_bytes or not cases:
        return []
    unknown: dict[str, int] = {}
    rows = [[case.id, *_fit_of(case, plan.cluster, card.memory_bytes, unknown)] for case in cases]
    about = f"of the {card.memory_bytes / 1e9:g} GB of {plan.cluster.gpu_name}"
    return [
        *aligned(["case", "at most", about], rows, ["", "(GB)", ""]),
        *_notes(unknown),
        *comment(f"By formula, on the fullest rank; 'clusterbench run --dry' runs the steps themselves. {NOT_SEEN}"),
    ]


def _fit_of(case: Case, cluster: Cluster, memory_bytes: float, unknown: dict[str, int]) -> tuple[str, str]:
    """Of one rank, and whether all fit that share the fullest GPU."""
    if (needed := _needed(case, cluster)) is not None:
        sharing, of_rank = needed
        gigabytes = of_rank / 1e9
        each = f"{gigabytes:.1f}" if gigabytes >= 0.1 else digits(gigabytes, 2)
        return (f"{sharing} x {each}" if sharing > 1 else each), fit_words(sharing * of_rank, memory_bytes)
    job = job_of(case.point, case.device)
    reasons = not_predicted(job, active_in(job.layout, from_options(case.point)))
    why = reasons.get(TOTAL, "the trainer does not say how much it holds at one moment")
    return "-", f"not predicted {_note(unknown, why)}"


def _needed(case: Case, cluster: Cluster) -> tuple[int, float] | None:
    """How many ranks share the fullest GPU, consecutive ones (``Member.gpu_of``), and bytes of each."""
    whole = next((case.expected[key] for key in (WHOLE, WHOLE_OF_ONE) if key in case.expected), None)
    return None if whole is None else (min(cluster.ranks_per_gpu, case.world_size // case.num_nodes), whole.value)


def _asked(cases: Iterable[Case]) -> list[str]:
    """Every floor, with its bound or why there is none; what is asked of the best of several cases is one line."""
    notes: dict[str, int] = {}
    cases_of: dict[tuple[Floor, object], list[str]] = defaultdict(list)
    for case in cases:
        for floor in case.floors:
            cases_of[floor, same_work(case) if floor.best else case.id].append(case.id)
    rows = [
        [
            f"{ids[0]} and {len(ids) - 1} more" if len(ids) > 1 else ids[0],
            floor.words,
            "not judged" if floor.bound is None else format_value(floor.bound, floor.unit),
            _note(notes, floor.basis),
        ]
        for (floor, _), ids in cases_of.items()
    ]
    return [*aligned(["case", "asked", "bound", "basis"], rows), *_notes(notes)]


def _note(notes: dict[str, int], basis: str) -> str:
    return f"[{notes.setdefault(basis, len(notes) + 1)}]"


def _notes(notes: Mapping[str, int]) -> Iterator[str]:
    for basis, number in notes.items():
        yield from comment(f"[{number}] {basis}", indent=" " * len(f"[{number}] "))


def _refused(refusals: Iterable[Refusal]) -> list[str]:
    alike: dict[tuple[str, str], list[Refusal]] = defaultdict(list)
    for refusal in refusals:
        alike[refusal.reason, refusal.hint].append(refusal)
    lines = []
    for (reason, hint), group in alike.items():
        lines += comment(f"refused: {reason}" + (f"\nhint: {hint}" if hint else ""))
        cases = aligned(["", ""], [[member.id, member.source] for member in group])
        lines += [line for line in cases if not line.startswith("#")]
    return lines
