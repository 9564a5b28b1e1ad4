from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import GRID, INK, LETTERS, MUTED, PALETTE, PAPER, WORDS, canvas
from clusterbench.formulas.statistics import median
from clusterbench.run_folder.attempts import LONGEST_S
from clusterbench.run_folder.records import MOST as LARGEST
from clusterbench.units import scale
from clusterbench.words import legible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_GPUS, MOST_REASONS, MOST_CURVES = 24, 8, 16
FEWEST_MOMENTS = 3

ALIKE = 0.03
"""Clocks within 3 % are alike: one step of the clock is 15 MHz, nearly 1 %."""

REASONS = {
    "sw_power_cap": "the power limit",
    "sw_thermal": "heat (driver)",
    "hw_thermal": "heat (hardware)",
    "hw_slowdown": "hardware slowdown",
    "hw_power_brake": "the power brake",
    "application_clocks": "application clocks",
    "sync_boost": "sync boost",
    "board_limit": "a limit of the board",
    "reliability": "the reliability limit",
}
"""Names of engine/telemetry.py in words; ``sync_boost`` keeps GPUs of a group at one clock."""

_STANDS_OUT = PALETTE[1]


@dataclass(frozen=True)
class Kind:
    """One of the figures: how it is called, its fields in a record, and what its worst is."""

    title: str
    unit: str
    means: tuple[str, ...]
    worsts: tuple[str, ...]
    worst: Callable[..., float]
    course: str
    limit: str = ""
    limit_name: str = ""


# Of two fields the first that is there counts: records of older runs do not tell busy from idle.
KINDS = (
    Kind(
        "SM clock", "Hz", ("mean_busy_sm_clock_hz", "mean_sm_clock_hz"), ("min_busy_sm_clock_hz", "min_sm_clock_hz"),
        min, "sm_clock_hz", "max_sm_clock_hz", "highest clock",
    ),
    Kind("Power", "W", ("mean_power_w",), ("max_power_w",), max, "power_w", "power_limit_w", "power limit"),
    Kind("Temperature", "C", ("max_temperature_c",), ("max_temperature_c",), max, "temperature_c"),
)  # fmt: skip
CLOCK, POWER, TEMPERATURE = KINDS


@dataclass(frozen=True)
class Spell:
    """One GPU while one repeat of one case ran; ``course`` holds its figures over time where they were kept."""

    case: str
    repeat: int
    num_samples: float
    figures: Mapping[str, float]
    reasons: Mapping[str, float]
    course: Mapping[str, Sequence[float | None]]

    def first_of(self, names: Sequence[str]) -> float | None:
        return next((self.figures[name] for name in names if name in self.figures), None)


@dataclass
class Gpu:
    """All that was seen of one GPU while cases ran; ``limits`` are what the driver said of it before."""

    host: str
    number: str
    limits: Mapping[str, float]
    spells: list[Spell] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{legible(self.host, 24)}, GPU {legible(self.number, 12)}"

    def mean(self, kind: Kind) -> float | None:
        """Over the samples of all cases."""
        return self._over_samples(lambda spell: spell.first_of(kind.means))

    def worst(self, kind: Kind) -> float | None:
        known = [value for spell in self.spells if (value := spell.first_of(kind.worsts)) is not None]
        return kind.worst(known) if known else None

    @property
    def clock_share(self) -> float | None:
        """Mean clock over the highest; None where either is unknown."""
        clock_hz, most_hz = self.mean(CLOCK), self.limits.get(CLOCK.limit)
        return clock_hz / most_hz if clock_hz and most_hz else None

    @property
    def reasons(self) -> dict[str, float]:
        """Share of the samples of all cases in which each reason for lowered clocks was given."""
        shares = {
            name: self._share(name) for name in dict.fromkeys(name for spell in self.spells for name in spell.reasons)
        }
        return {name: share for name, share in shares.items() if share > 0}

    def _share(self, reason: str) -> float:
        return self._over_samples(lambda spell: spell.reasons.get(reason, 0.0)) or 0.0

    def _over_samples(self, of: Callable[[Spell], float | None]) -> float | None:
        known = [(value, spell.num_samples) for spell in self.spells if (value := of(spell)) is not None]
        count = sum(samples for _, samples in known)
        return sum(value * samples for value, samples in known) / count if count else None


@dataclass(frozen=True)
class Watched:
    """GPUs that worked, the lowest clock first, and how many did nothing."""

    gpus: tuple[Gpu, ...]
    num_idle: int


class ClockPower(Chart[Watched]):
    """SM clock, power and temperature of each GPU while cases ran, and why clocks were lowered.

    How to read it
    --------------
    One line a GPU, the lowest clock on top. The dot is the mean over all cases, the tick the worst that was seen: the
    lowest clock, the highest power and temperature. The dotted line is the highest clock and the power limit, as the
    driver says. Dots of GPUs of one kind should stand below each other; one that is left of the others is slower, and
    in a job all wait for it. Reasons are those the driver gave, as a share of the samples: at the power limit a busy
    GPU is where it is meant to be, heat and power brake are faults. Over time, a clock that falls while the temperature
    rises is cooling, one that falls at the power limit is work. Samples are taken twice a second while a case is
    timed; of one that is timed for less, and in earlier runs, from before it is prepared until its last pass. Moments
    at which a GPU was idle do not count for the dot of its clock.
    """

    title: ClassVar[str] = "Clocks, power and temperature of the GPUs while cases ran"
    section: ClassVar[Section] = "steadiness"
    after: ClassVar[str] = "stability"
    is_aside: ClassVar[bool] = True

    def select(self, reading: Reading) -> Watched | None:
        limits = _limits(reading.environment)
        gpus: dict[tuple[str, str], Gpu] = {}
        for history in reading.histories:
            for observation in history.observations:
                for host, uuid, record in _summaries(observation.telemetry):
                    if (host, uuid) not in gpus:
                        gpus[host, uuid] = Gpu(host, _number_of(record, uuid), limits.get((host, uuid), {}))
                    gpus[host, uuid].spells.extend(_spell(history.case.id, observation.repeat, record))
        worked = [gpu for gpu in gpus.values() if gpu.mean(CLOCK) or gpu.mean(POWER)]
        worked.sort(key=lambda gpu: (gpu.clock_share or 1.0, gpu.mean(CLOCK) or LARGEST))
        return Watched(tuple(worked), len(gpus) - len(worked)) if worked else None

    def draw(self, data: Watched) -> list[Panel]:
        panels = [_by_gpu(kind, data.gpus) for kind in KINDS if any(gpu.mean(kind) for gpu in data.gpus)]
        if any(gpu.reasons for gpu in data.gpus[:MOST_GPUS]):
            panels.append(_reasons(data.gpus))
        if followed := _followed(data.gpus):
            panels += [panel for kind in KINDS if (panel := _over_time(kind, data.gpus, *followed))]
        return panels

    def answer(self, data: Watched) -> str:
        return " ".join(filter(None, [_clocks_said(data.gpus), _reason_said(data.gpus)]))

    def left_out(self, data: Watched) -> str:
        count = len(data.gpus)
        drawn = f"Drawn are the {MOST_GPUS} of {count:,} GPUs with the lowest clocks." if count > MOST_GPUS else ""
        idle = f"{data.num_idle:,} more GPUs were idle while cases ran." if data.num_idle else ""
        return " ".join(filter(None, [drawn, idle]))


# What can be believed of a record


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= LARGEST  # type: ignore[operator]


def _numbers(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    return {name: float(record[name]) for name in names if _is_number(record.get(name))}


def _summaries(telemetry: object) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Host, UUID and what was seen of each GPU."""
    for host, gpus in telemetry.items() if isinstance(telemetry, Mapping) else ():
        for uuid, record in gpus.items() if isinstance(gpus, Mapping) else ():
            if isinstance(record, Mapping):
                yield str(host), str(uuid), record


def _limits(environment: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    """By host and UUID."""
    hosts = environment.get("hosts")
    limits_of: dict[tuple[str, str], dict[str, float]] = {}
    for host, about in hosts.items() if isinstance(hosts, Mapping) else ():
        gpus = about.get("gpus") if isinstance(about, Mapping) else None
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, Mapping):
                limits = _numbers(gpu, (CLOCK.limit, POWER.limit))
                limits_of[str(host), str(gpu.get("uuid"))] = {name: value for name, value in limits.items() if value}
    return limits_of


def _number_of(record: Mapping[str, Any], uuid: str) -> str:
    index = record.get("index")
    return str(index) if type(index) is int else uuid


def _spell(case: str, repeat: int, record: Mapping[str, Any]) -> Iterator[Spell]:
    """Nothing of a GPU that was idle all the while."""
    if record.get("busy_share") == 0:
        return
    samples = record.get("num_samples")
    reasons = record.get("throttle_reasons")
    shares = _numbers(reasons, [*reasons]) if isinstance(reasons, Mapping) else {}
    names = [name for kind in KINDS for name in (*kind.means, *kind.worsts)]
    yield Spell(
        case,
        repeat,
        float(samples) if _is_number(samples) and samples else 1.0,
        _numbers(record, names),
        {str(name): share for name, share in shares.items() if share <= 1 and name != "gpu_idle"},
        _course(record.get("course")),
    )


def _course(course: object) -> Mapping[str, Sequence[float | None]]:
    """Figures over time if they are whole: lists of one length, and moments that come one after the other."""
    if not isinstance(course, Mapping):
        return {}
    moments = course.get("elapsed_s")
    if not isinstance(moments, list) or not all(_is_number(moment) and moment <= LONGEST_S for moment in moments):
        return {}
    values = {kind.course: course.get(kind.course) for kind in KINDS}
    is_whole = moments == sorted(moments) and all(
        isinstance(figures, list)
        and len(figures) == len(moments)
        and all(figure is None or _is_number(figure) for figure in figures)
        for figures in values.values()
    )
    return {"elapsed_s": moments, **values} if is_whole else {}  # type: ignore[dict-item]


# The words


def _clocks_said(gpus: Sequence[Gpu]) -> str:
    clocks = {gpu.label: clock for gpu in gpus if (clock := gpu.mean(CLOCK))}
    if not clocks:
        return ""
    slowest, low, high = gpus[0], min(clocks.values()), max(clocks.values())
    of = scale("Hz", [high])
    share = slowest.clock_share
    of_highest = f", {100 * share:.0f} % of the highest" if share else ""
    if len(clocks) == 1:
        power, limit = slowest.mean(POWER), slowest.limits.get(POWER.limit)
        takes = f", and took {power:.0f} W{f' of {limit:.0f} W' if limit else ''}" if power else ""
        return f"{slowest.label} worked at {of.text(low, 3)} {of.unit} in the mean over cases{of_highest}{takes}."
    if low >= (1 - ALIKE) * high:
        spread = " to ".join(dict.fromkeys((of.text(low, 3), of.text(high, 3)))) + f" {of.unit}"
        return f"All {len(clocks):,} GPUs worked at like clocks: {spread} in the mean over cases{of_highest}."
    lowest = clocks.get(slowest.label, low)
    middle = of.text(median([*clocks.values()]), 3)
    return (
        f"{slowest.label} had the lowest clock while it worked: {of.text(lowest, 3)} {of.unit} in the mean over cases"
        f"{of_highest}; the median of {len(clocks):,} GPUs is {middle} {of.unit}."
    )


def _reason_said(gpus: Sequence[Gpu]) -> str:
    """Why, of the GPU that stands out; or, where none does, of the one that was held back most often."""
    slow = [gpu for gpu in gpus[:1] if _stands_out(gpu, gpus)]
    # The power limit is where a busy GPU is meant to be, and would hide what else there was.
    faults = [(share, name, gpu) for gpu in slow for name, share in gpu.reasons.items() if name != "sw_power_cap"]
    causes = faults or [(share, name, gpu) for gpu in slow or gpus for name, share in gpu.reasons.items()]
    if not causes:
        return ""
    # What slowed the hardware down has a bit of its own, which says more.
    share, name, gpu = max(causes, key=lambda cause: (cause[0], cause[1] != "hw_slowdown"))
    subject = "Its clock was lowered" if slow or len(gpus) == 1 else f"Clocks were lowered most often on {gpu.label},"
    return f"{subject} by {_words(name)} in {100 * share:.0f} % of the samples."


def _words(reason: str) -> str:
    return legible(REASONS.get(reason) or reason.replace("_", " "), 24)


# The pictures


def _by_gpu(kind: Kind, gpus: Sequence[Gpu]) -> Panel:
    """A dot for the mean, a tick for the worst, a dotted line for the limit; all GPUs are entries, the first drawn."""
    shown = gpus[:MOST_GPUS]
    figure, axes = canvas(_title(kind), height=max(1.7, 1.2 + 0.24 * len(shown)))
    limits = [gpu.limits.get(kind.limit) for gpu in gpus]
    values = [value for gpu in gpus for value in (gpu.mean(kind), gpu.worst(kind)) if value is not None]
    of = scale(kind.unit, [*values, *(limit for limit in limits if limit)])
    for place, gpu in enumerate(shown):
        mean, worst, limit = gpu.mean(kind), gpu.worst(kind), limits[place]
        if limit:
            axes.plot([of(limit)] * 2, [place - 0.5, place + 0.5], color=INK, linewidth=1.1, linestyle=(0, (1, 1.5)))
        if mean is None:
            continue
        colour = _STANDS_OUT if kind is CLOCK and _stands_out(gpu, gpus) else PALETTE[0]
        if worst is not None:
            axes.plot([of(mean), of(worst)], [place] * 2, color=colour, linewidth=1.5, alpha=0.5)
            axes.plot([of(worst)], [place], marker="|", color=colour, markersize=9, markeredgewidth=1.6)
        axes.plot([of(mean)], [place], marker="o", color=colour, markeredgecolor=PAPER, markersize=7, zorder=3)
    if any(limits[: len(shown)]):
        _name_the_limit(axes, kind.limit_name, max(of(limit) for limit in limits if limit))
    axes.set_yticks(range(len(shown)), [gpu.label for gpu in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1.08 * max(map(of, [*values, *(limit for limit in limits if limit)])) or 1)
    axes.set_xlabel(_unit(of.unit))
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    entries = tuple(
        Entry(
            (gpu.label, mean := gpu.mean(kind), gpu.worst(kind), limits[place]),
            area=(of(mean), place, of(mean), place) if mean is not None and place < len(shown) else None,
        )
        for place, gpu in enumerate(gpus)
    )
    columns = (Column("GPU"), Column("mean", kind.unit), Column(_worst_name(kind), kind.unit))
    return Panel(figure, (*columns, Column(kind.limit_name or "limit", kind.unit)), entries)


def _title(kind: Kind) -> str:
    return f"{kind.title}: mean over cases, and the {_worst_name(kind)}"


def _worst_name(kind: Kind) -> str:
    return "lowest" if kind.worst is min else "highest"


def _unit(unit: str) -> str:
    return "°C" if unit == "C" else unit


def _stands_out(gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    clocks = [clock for peer in gpus if (clock := peer.mean(CLOCK))]
    return bool(clocks) and (gpu.mean(CLOCK) or 0.0) < (1 - ALIKE) * median(clocks)


def _name_the_limit(axes: Axes, name: str, at: float) -> None:
    axes.annotate(
        name, (at, 0), (-3, 4), xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="right",
        fontsize=LETTERS, color=MUTED,
    )  # fmt: skip


def _reasons(gpus: Sequence[Gpu]) -> Panel:
    """GPU x reason; a fuller colour is a larger share of the samples."""
    from matplotlib.patches import Rectangle

    affected = sorted((gpu for gpu in gpus if gpu.reasons), key=lambda gpu: -max(gpu.reasons.values()))
    shown = affected[:MOST_GPUS]
    most: dict[str, float] = {}
    for gpu in shown:
        for name, share in gpu.reasons.items():
            most[name] = max(most.get(name, 0.0), share)
    names = sorted(most, key=lambda name: -most[name])[:MOST_REASONS]
    figure, axes = canvas(
        "Reasons for lowered clocks, % of samples",
        width=2.6 + 0.75 * max(2, len(names)),
        height=max(1.9, 1.5 + 0.24 * len(shown)),
    )
    entries = []
    for place, gpu in enumerate(shown):
        for column, name in enumerate(names):
            share = gpu.reasons.get(name, 0.0)
            area = (column - 0.5, place - 0.5, column + 0.5, place + 0.5)
            entries.append(Entry((gpu.label, _words(name), share), area=area))
            axes.add_patch(
                Rectangle(area[:2], 1, 1, facecolor=_STANDS_OUT, alpha=0.75 * share, edgecolor=GRID, linewidth=0.6)
            )
            if share:
                axes.text(column, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=LETTERS, color=INK)
    axes.set_xticks(range(len(names)), ["\n".join(_words(name).split()) for name in names])
    axes.set_yticks(range(len(shown)), [gpu.label for gpu in shown])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(False)
    return Panel(figure, (Column("GPU"), Column("reason"), Column("share of samples", "fraction")), tuple(entries))


def _followed(gpus: Sequence[Gpu]) -> tuple[str, int] | None:
    """The case and repeat to show over time: where a clock was lowest; of like ones the longest."""
    lowest_by_case: dict[tuple[str, int], tuple[float, float]] = {}
    for gpu in gpus:
        for spell in gpu.spells:
            if len(spell.course.get("elapsed_s", ())) >= FEWEST_MOMENTS:
                clock_hz = spell.first_of(CLOCK.means) or LARGEST
                lowest, samples = lowest_by_case.get((spell.case, spell.repeat), (LARGEST, 0.0))
                lowest_by_case[spell.case, spell.repeat] = min(lowest, clock_hz), max(samples, spell.num_samples)
    if not lowest_by_case:
        return None
    lowest = min(clock for clock, _ in lowest_by_case.values())
    low = {key: samples for key, (clock, samples) in lowest_by_case.items() if (1 - ALIKE) * clock <= lowest}
    return max(low, key=lambda key: low[key])


def _over_time(kind: Kind, gpus: Sequence[Gpu], case: str, repeat: int) -> Panel | None:
    curves = [
        (gpu, [(at, value) for at, value in zip(spell.course["elapsed_s"], spell.course[kind.course], strict=True)
               if at is not None and value is not None])
        for gpu in gpus
        for spell in gpu.spells
        if (spell.case, spell.repeat) == (case, repeat) and spell.course
    ]  # fmt: skip
    curves = [(gpu, points) for gpu, points in curves if points]
    if not curves:
        return None
    drawn = curves[:MOST_CURVES]
    values = [value for _, points in curves for _, value in points]
    limits = {limit for gpu, _ in drawn if (limit := gpu.limits.get(kind.limit))}
    of = scale(kind.unit, [*values, *limits])
    figure, axes = canvas(f"{kind.title} over time\n{legible(case, 60)}, repeat {repeat + 1}", height=2.7)
    for gpu, points in reversed(drawn):
        is_slow = _stands_out(gpu, gpus)
        axes.plot(
            [at for at, _ in points], [of(value) for _, value in points], color=_STANDS_OUT if is_slow else PALETTE[0],
            linewidth=1.8 if is_slow else 1.1, alpha=1.0 if is_slow else 0.6, zorder=3 if is_slow else 2,
        )  # fmt: skip
    if len(limits) == 1:
        (limit,) = limits
        axes.axhline(of(limit), color=INK, linewidth=1.1, linestyle=(0, (1, 1.5)))
        axes.annotate(
            kind.limit_name, (0, of(limit)), (2, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            fontsize=LETTERS, color=MUTED,
        )  # fmt: skip
    axes.set_ylim(0, 1.14 * max(map(of, [*values, *limits])) or 1)
    axes.set_xlabel("s since the case was begun")
    axes.set_ylabel(_unit(of.unit))
    slow = [(gpu, points) for gpu, points in drawn if _stands_out(gpu, gpus)]
    named = slow[:1] or (drawn if len(drawn) == 1 else [])
    for gpu, points in named:
        at, value = points[-1]
        axes.annotate(
            gpu.label, (at, of(value)), (0, -9), textcoords="offset points", ha="right", va="top", fontsize=LETTERS,
            color=WORDS[1 if slow else 0],
        )  # fmt: skip
    entries = tuple(
        Entry(
            (gpu.label, sum(some := [value for _, value in points]) / len(some), min(some), max(some)),
            case,
            (points[-1][0], of(points[-1][1]), points[-1][0], of(points[-1][1])) if place < len(drawn) else None,
        )
        for place, (gpu, points) in enumerate(curves)
    )
    numbers = (Column(name, kind.unit) for name in ("mean", "lowest", "highest"))
    return Panel(figure, (Column("GPU"), *numbers), entries)
