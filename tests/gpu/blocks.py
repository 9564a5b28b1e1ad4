"""What is run on the card, block by block in the order of what a cut session needs most, and what its folders tell."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from clusterbench import own_copy
from clusterbench.cases import Reading
from clusterbench.cluster import find_card
from clusterbench.derive import read
from clusterbench.errors import ClusterbenchError
from clusterbench.job.passes import EXECUTED
from clusterbench.measured.agreement import disputed_cases
from clusterbench.rows import Row as Figure
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.types import NOTHING_SENT, metric_key, split_key
from clusterbench.words import plural, short
from tests.gpu import AS_PREDICTED, DIFFERS, FAILED, ROOT, Row, failed, predictions
from tests.gpu.nccl_probe import STEPS
from tests.gpu.predictions import judged
from tests.gpu.session import GRACE_S, Ending, Part, Setting
from tests.random_steps import drawn_suite

PAGE = "index.html"

RANKS_PER_GPU = 4
"""HSDP needs four ranks; every other case takes two of them."""

ON_ONE_CARD = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MAX_CTAS": "2"}
"""To NCCL each rank is a host, and between these is the loopback; few blocks of threads leave room for other ranks."""

Rows = Callable[[Reading, Setting], Iterator[Row]]


def all_blocks(device: Literal["cpu", "cuda"]) -> dict[str, list[Part]]:
    """By name, in order."""
    shared = ("--ranks-per-gpu", str(RANKS_PER_GPU)) if device == "cuda" else ()
    probe = Part(
        "ranks_probe",
        _probe,
        _probe_rows,
        most_s=40,
        codes=(0,),
        environment={**ON_ONE_CARD, "NCCL_DEBUG": "INFO"},
        is_gate=True,
    )
    return {
        "smoke": [_suite("smoke", "one_gpu_smoke", 360)],
        "tests": [Part("tests", _pytest, _tested, most_s=180, codes=(0, 1))],
        "ladder": [_suite("ladder", "one_gpu", 560, _ladder)],
        "ranks": [probe, _suite("ranks", "one_gpu_ranks", 500, more=shared, environment=ON_ONE_CARD)],
        "random": [_random(4, device), _random(1, device)],
        "ceilings": [_suite("ceilings", "one_gpu_ceilings", 120, _ceilings)],
        "fake": [_suite("fake", "one_gpu_fake", 480, _lone_ranks)],
        "memory": [_suite("memory", "one_gpu_memory", 500, _memory), Part("memory_dry", _dry, _dry_rows, most_s=240)],
    }


# Suites


def _suite(
    name: str,
    suite: str,
    most_s: float,
    rows: Rows | None = None,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Part:
    def command(setting: Setting) -> list[str]:
        one_gpu = ("--gpus-per-node", "1") if setting.device == "cuda" else ()
        limit = ("--time-limit", f"{max(1, int(setting.limit_s - GRACE_S))}s")  # what is under way ends in order
        return _clusterbench(suite, setting, "--device", setting.device, *one_gpu, *limit, *more)

    def found(setting: Setting, ending: Ending) -> list[Row]:
        reading = _reading(setting)
        return [*outcomes(reading, setting, ending), *(rows(reading, setting) if rows else ())]

    return Part(name, command, found, most_s, environment=environment or {})


def _clusterbench(suite: str, setting: Setting, *more: str) -> list[str]:
    return _run_command(ROOT / "suites" / f"{suite}.yaml", setting, *more)


def _run_command(suite: Path, setting: Setting, *more: str) -> list[str]:
    return own_copy.command("clusterbench", "run", str(suite), "--out", str(setting.folder), *more)


def _reading(setting: Setting) -> Reading:
    try:
        return read(RunFolder.open(setting.folder))
    except ClusterbenchError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def outcomes(reading: Reading, setting: Setting, ending: Ending) -> Iterator[Row]:
    """How many cases ended as expected; and each that did not, or that ended otherwise than was predicted."""
    name, cases = setting.folder.name, reading.histories
    good = [history for history in cases if _is_expected(history, setting)]
    whole = f"{len(good)} of {plural(len(cases) + len(reading.plan.refusals), 'case')}"
    is_all = len(good) == len(cases) and not reading.plan.refusals
    yield Row(f"{name}, as expected", whole, "all", AS_PREDICTED if is_all else FAILED)
    for history in cases:
        if history not in good:
            yield failed(_label(name, history.case.id), history.status, _reason(history), "ok")
    for refusal in reading.plan.refusals:
        yield failed(_label(name, refusal.id), "refused", refusal.reason, "ok")
    for problem in reading.problems:
        yield failed(f"{name}, a record", "left out", problem)
    if not (setting.folder / PAGE).exists() and ending.how == "ended":
        yield failed(f"{name}, its page", "is not there", ending.last_words)


def _is_expected(history: History, setting: Setting) -> bool:
    if history.status == "skipped":  # on a CPU a branch that only a GPU has
        return setting.device == "cpu" or (_wants_float8(history) and _multiplies_no_float8(setting))
    return history.status == "ok" or history.status in history.case.expected_outcomes


def _wants_float8(history: History) -> bool:
    point = history.case.point
    return point.get("float8", "none") != "none" or str(point.get("dtype")).startswith("float8")


def _multiplies_no_float8(setting: Setting) -> bool:
    """As far as the card is on record."""
    card = find_card(_gpu(setting))
    return card is not None and "float8" not in card.peak_flops_per_s


def _reason(history: History) -> str:
    return short(history.outcome.reason, 240) if history.outcome else ""


def _label(block: str, case: str, figure: str = "") -> str:
    """``memory tp1-recompute=full-shape=llama-1b allocated``."""
    return " ".join(filter(None, (block, case.removeprefix("train_step/1n1/"), figure)))


def _figures(reading: Reading, history: History) -> dict[str, Figure]:
    """By metric and what tells figures of it apart: ``mfu palm_6n datasheet``."""
    rows = reading.by_case.get(history.case.id, [])
    return {" ".join((row.metric, *row.detail.values())): row for row in rows if row.value is not None}


# The ladder


def _ladder(reading: Reading, setting: Setting) -> Iterator[Row]:
    trained = [history for history in reading.histories if history.case.benchmark == "train_step"]
    for history in trained:
        yield from _rung(history, _figures(reading, history), setting)
    yield from _agreement(reading, setting)


def _rung(history: History, figures: Mapping[str, Figure], setting: Setting) -> Iterator[Row]:
    case, gpu = history.case, _gpu(setting)
    point: Mapping[str, Any] = case.point
    label = partial(_label, setting.folder.name, predictions.words_of(point))
    predicted = predictions.outcome_of_rung(gpu, point, _card_bytes(setting))
    if history.status != "ok":
        if history.status in case.expected_outcomes:
            verdict = AS_PREDICTED if history.status == predicted else DIFFERS
            yield Row(label(), history.status, predicted, verdict, _reason(history))
        return
    if predicted and predicted != "ok":
        yield Row(label(), "ok", predicted, DIFFERS)
    rate = figures.get("tokens_per_s")
    if rate is None or rate.value is None:
        yield failed(label(), "no figures")
        return
    yield judged(label("tokens_per_s"), rate.value, "tokens/s", predictions.tokens_per_s(gpu, point))
    for convention in ("palm_6n", "palm"):
        over_peak, over_bfloat16 = (figures.get(f"mfu {convention} datasheet{of}") for of in ("", " bfloat16"))
        if over_peak and over_bfloat16:
            yield judged(label(f"mfu {convention} of float8"), over_peak.value or 0, "fraction")
        if used := over_bfloat16 or over_peak:
            prediction = predictions.mfu(gpu, point, convention)
            yield judged(label(f"mfu {convention}"), used.value or 0, "fraction", prediction)
    yield from _executed(history, figures, label, gpu)
    if point.get("compile"):
        frames = figures.get("compiled_frames")
        yield judged(label("compiled_frames"), (frames and frames.value) or 0, "1", predictions.COMPILED)
    if drift := figures.get("warm_up_drift"):
        yield judged(label("warm_up_drift"), drift.value or 0, "fraction", predictions.SETTLED)
    yield from _peaks(history, label, setting)


def _executed(history: History, figures: Mapping[str, Figure], label: Callable[[str], str], gpu: str) -> Iterator[Row]:
    """The only figure by which ways to recompute can be compared."""
    rate = figures.get("executed_flops_per_s_per_rank")
    if rate and rate.value:
        planned = history.case.expected.items()
        by_kind = {split_key(key)[1]["part"]: each.value for key, each in planned if key.startswith("executed_flops[")}
        prediction = predictions.executed_flops_per_s(gpu, history.case.point, by_kind)
        yield judged(label("executed"), rate.value, "FLOP/s", prediction)


def _agreement(reading: Reading, setting: Setting) -> Iterator[Row]:
    """The loss or norm furthest from those of cases that compute the same, as a share of what rounding allows."""
    shares = {
        f"{row.case}, {row.detail['source']}": row.value / row.expected
        for row in reading.rows
        if row.metric == "agreement" and row.value is not None and row.expected
    }
    if shares:
        worst = max(shares, key=lambda key: shares[key])
        name = f"{setting.folder.name}, losses and norms apart"
        yield judged(name, shares[worst], "1", predictions.AGREEING, worst)
    for case in sorted(disputed_cases(reading.rows)):
        yield failed(
            _label(setting.folder.name, case), "disputed", "its losses or norms differ from other rungs'", "ok"
        )


def _gpu(setting: Setting) -> str:
    return str(setting.machine.get("gpu")) if setting.device == "cuda" else ""


def _card_bytes(setting: Setting) -> float | None:
    return setting.machine.get("memory_bytes") if setting.device == "cuda" else None


# Memory


def _memory(reading: Reading, setting: Setting) -> Iterator[Row]:
    for history in reading.histories:
        yield from _peaks(history, partial(_label, setting.folder.name, history.case.id), setting)


_TOTALS = tuple(metric_key("peak_memory", category="total", **of) for of in ({}, {"source": NOTHING_SENT}))


def _peaks(history: History, label: Callable[[str], str], setting: Setting) -> Iterator[Row]:
    """One peak as all see it: live tensors and allocator over the formula, and what the driver holds beyond those."""
    if history.pooled is None:
        return
    (seen,) = history.pooled.passes["memory"]
    formula = next((history.case.expected[key] for key in _TOTALS if key in history.case.expected), None)
    if formula:
        yield judged(label("tracked/formula"), seen["total"] / formula.value, "1", predictions.TRACKED)
    if "allocated" not in seen:
        return
    if formula:
        yield judged(label("allocated/formula"), seen["allocated"] / formula.value, "1", predictions.ALLOCATED)
    yield judged(label("allocated"), seen["allocated"], "B")
    yield judged(label("reserved"), seen["reserved"], "B")
    gpus = [gpu for of_host in history.pooled.telemetry.values() for gpu in of_host.values()]
    if len(gpus) == 1 and (held := gpus[0].get("max_memory_used_bytes")):
        # of the whole case: proof and timed steps may have held more than the step that was looked at
        yield judged(label("driver-reserved"), held - seen["reserved"], "B", predictions.BEYOND_ALLOCATOR)


def _dry(setting: Setting) -> list[str]:
    card = ("--gpu", _gpu(setting), "--gpus-per-node", "1") if setting.device == "cuda" else ("--device", "cpu")
    return _clusterbench("one_gpu_memory", setting, "--dry", *card)


def _dry_rows(setting: Setting, ending: Ending) -> list[Row]:
    reading = _reading(setting)
    rows = list(outcomes(reading, setting, ending))
    for row in reading.rows:
        if row.metric == "peak_memory" and row.detail["category"] == "total" and row.value and row.expected:
            label = _label(setting.folder.name, row.case, "dry/formula")
            rows.append(judged(label, row.value / row.expected, "1", predictions.DRY))
    return rows


# One rank of a layout, with nothing sent


def _lone_ranks(reading: Reading, setting: Setting) -> Iterator[Row]:
    times: dict[str, dict[bool, float]] = {}
    for history in reading.lone_ranks:
        layout, is_compiled = str(history.case.point["layout"]), bool(history.case.point.get("compile"))
        label = partial(_label, setting.folder.name, layout + " compiled" * is_compiled)
        if history.status == "out_of_memory":
            yield Row(label(), history.status, "ok", DIFFERS, _reason(history))
        if history.status == "ok":
            figures = _figures(reading, history)
            yield from _lone_rank(history, figures, label, _gpu(setting))
            yield from _peaks(history, label, setting)
            times.setdefault(layout, {})[is_compiled] = figures[f"rank_time {NOTHING_SENT}"].value or 0.0
    for layout, of in times.items():
        if len(of) > 1:
            name = _label(setting.folder.name, layout, "compiled/eager")
            yield judged(name, of[True] / of[False], "1", predictions.compiled_over_eager(_gpu(setting)))


def _lone_rank(history: History, figures: Mapping[str, Figure], label: Callable[[str], str], gpu: str) -> Iterator[Row]:
    """What the rank takes; what it executes and would send, as shares of the formulas; what was compiled."""
    assert history.pooled is not None
    values = {row.metric: row.value or 0.0 for row in figures.values()}
    (executed,) = EXECUTED.of(history.pooled)
    prediction = predictions.rank_time(gpu, executed)
    yield judged(label("rank_time"), values["rank_time"], "s", prediction)
    if values["compute_time"]:  # else the profiler saw nothing
        yield judged(label("computing"), values["compute_time"] / values["rank_time"], "fraction")
    for row in figures.values():
        if row.metric in ("collectives", "executed_flops_per_rank") and row.expected:
            figure = " ".join(filter(None, (row.metric, row.detail.get("axis"))))
            yield judged(label(f"{figure}/formula"), (row.value or 0.0) / row.expected, "1", predictions.COUNTED)
    if history.case.point.get("compile"):
        yield judged(label("compiled_frames"), values.get("compiled_frames", 0), "1", predictions.COMPILED)


# Ceilings


def _ceilings(reading: Reading, setting: Setting) -> Iterator[Row]:
    for history in reading.histories:
        for row in _figures(reading, history).values():
            if row.metric.endswith(("flops_per_s_per_rank", "bandwidth_per_rank")) and row.value is not None:
                case = history.case
                prediction = predictions.ceiling(_gpu(setting), case.benchmark, case.point, row.metric)
                yield judged(_label(setting.folder.name, case.id, row.metric), row.value, row.unit, prediction)


# Steps that nobody chose

DRAWN = {"cpu": 2, "cuda": 40}
"""How many, of each number of ranks: on a card as many as find time."""


def _random(num_ranks: int, device: Literal["cpu", "cuda"]) -> Part:
    """Steps drawn anew each day: all of them are right, so what is called wrong is a defect."""
    name = f"random{num_ranks}"
    ranks = ("--num-ranks", str(num_ranks))
    if device == "cuda":
        ranks = ("--gpus-per-node", "1", "--ranks-per-gpu", str(num_ranks))

    def command(setting: Setting) -> list[str]:
        suite = setting.folder.with_suffix(".yaml")
        seed = datetime.now(UTC).toordinal()
        drawn = drawn_suite(num_ranks, DRAWN[device], seed, compiled=0.2 if device == "cuda" else 0.0, device=device)
        suite.write_text(yaml.safe_dump(drawn, sort_keys=False))
        limit = f"{max(1, int(setting.limit_s - GRACE_S))}s"
        return _run_command(suite, setting, "--device", device, *ranks, "--time-limit", limit)

    return Part(name, command, _drawn_rows, most_s=150, environment=ON_ONE_CARD if num_ranks > 1 else {})


def _drawn_rows(setting: Setting, ending: Ending) -> list[Row]:
    """What had no time left is no fault."""
    reading, name = _reading(setting), setting.folder.name
    ended = [history for history in reading.histories if history.outcome is not None]
    bad = [history for history in ended if history.status not in ("ok", "skipped")]
    whole = f"{len(ended) - len(bad)} of {len(ended)}, {len(reading.histories) - len(ended)} not run"
    rows = [Row(f"{name}, right", whole, "all", FAILED if bad or not ended else AS_PREDICTED)]
    return rows + [failed(_label(name, each.case.id), each.status, _reason(each), "ok") for each in bad]


# Tests of the code that only a GPU runs


def files_with_gpu_tests() -> list[str]:
    """Files of tests that are marked so; other files may need more than pytest to be imported."""
    mark = re.compile(r"^@pytest\.mark\.gpu$", re.MULTILINE)
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if mark.search(path.read_text())]


def _pytest(setting: Setting) -> list[str]:
    # Without the project's options and plugins: of those only pytest itself is sure to be here.
    bare = ("--noconftest", "-o", "addopts=", "-W", "default", "-p", "no:cacheprovider")
    return [sys.executable, "-m", "pytest", "-v", "-rA", "--tb=short", "-m", "gpu", *bare, *files_with_gpu_tests()]


_TESTED = re.compile(r"^(tests/\S+\.py::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


def _tested(setting: Setting, ending: Ending) -> list[Row]:
    """From its output, line by line, so that a test that hangs leaves those before it."""
    found = dict(_TESTED.findall(_log(setting)))
    wanted = "PASSED" if setting.device == "cuda" else "SKIPPED"
    good = sum(how == wanted for how in found.values())
    verdict = AS_PREDICTED if found and good == len(found) else FAILED
    rows = [Row(f"tests, {wanted.lower()}", f"{good} of {len(found)}", "all", verdict)]
    return rows + [failed(name, how.lower(), "", wanted.lower()) for name, how in found.items() if how != wanted]


def _log(setting: Setting) -> str:
    return setting.folder.with_suffix(".log").read_text(errors="replace")


# Several ranks on the card


def _probe(setting: Setting) -> list[str]:
    return [sys.executable, "-m", "tests.gpu.nccl_probe", setting.device]


def _probe_rows(setting: Setting, ending: Ending) -> list[Row]:
    said = _log(setting)
    passed = [step for step in STEPS if all(f"rank {rank}: {step} ok" in said for rank in (0, 1))]
    if len(passed) == len(STEPS):
        return [Row(setting.folder.name, f"{len(STEPS)} of {len(STEPS)}", "all", AS_PREDICTED)]
    stuck = next(step for step in STEPS if step not in passed)
    note = f"not through '{stuck}'; docs/gpu.md says what to try"
    return [failed(setting.folder.name, f"{len(passed)} of {len(STEPS)}", note, "all")]
