"""Advice as a suite that measures it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterbench.errors import SuiteError
from clusterbench.expected.fits import fit
from clusterbench.pricing.advice import TO_MEASURE, Advice, Candidate, Question
from clusterbench.pricing.profiles.ours import Ours
from clusterbench.shape_file import mapping_of
from clusterbench.terminal import WIDTH
from clusterbench.words import comment

OURS = "ours"
"""The profile of the step that a suite runs."""


SUITE = "suite: advised"
"""The line by which a suite is one of these."""


@dataclass(frozen=True)
class AdvisedSuite:
    """A suite as text, and what has to be said of it, which stands on top of it, too."""

    text: str
    remarks: Sequence[str]


def expect_replaceable(path: Path) -> None:
    """That a suite may be written there.

    Raises
    ------
    SuiteError
        If the file holds something else than such a suite.
    """
    there = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if there.strip() and SUITE not in there.splitlines():
        raise SuiteError(f"--out {path} is there already, and advise did not write it: what it holds would be lost.")


def advised_suite(answers: Sequence[Advice], profile: str) -> AdvisedSuite:
    """The suite that measures the first of each ranking; several answers are about one question on several networks.

    Parameters
    ----------
    profile
        Whose prices they are. A suite runs our own step: what that cannot run, or would not fit, is left out.

    Raises
    ------
    SuiteError
        If nothing is left to measure.
    """
    of = answers[0].question
    first = {each.words: each for answer in answers for each in answer.ranked[:TO_MEASURE]}
    if not first:
        why = "nothing fits" if any(answer.least for answer in answers) else "no layout is legal"
        raise SuiteError(f"there is no suite to write: {why}, so there is nothing to measure.")
    why_not = {words: None if profile == OURS else _why_not(each, of) for words, each in first.items()}
    run = [each for words, each in first.items() if why_not[words] is None]
    remarks = [*_remarks(len(answers), len(run), profile), *_of_routing(run)]
    remarks += [f"left out: {words}: {why}." for words, why in why_not.items() if why is not None]
    if not run:
        none = "there is no suite to write: our step runs none of the layouts."
        hint = f"hint: --profile {OURS} ranks those that a suite can run"
        raise SuiteError("\n".join([none, *remarks[1:], hint]))
    lines = [
        *(line for remark in remarks for line in comment(remark, "  ", WIDTH)),
        SUITE,
        f"question: Which of the layouts priced fastest for {of.shape.name} on {of.world_size} GPUs is fastest?",
        f"num_nodes: {of.num_nodes}",
        "benchmarks:",
        *(line for each in run for line in _entry(each, of)),
    ]
    return AdvisedSuite("\n".join(lines) + "\n", remarks)


def _why_not(candidate: Candidate, of: Question) -> str | None:
    """Why our own step cannot stand for a layout; None where it can."""
    ours = Ours()
    if (why := ours.objection(candidate.priced)) is not None:
        return why
    held = ours.held(candidate.priced)
    if fit(held, of.memory_bytes) != "does not fit":
        return None
    return f"our step needs {held / 1e9:.1f} GB there, and the card has {of.memory_bytes / 1e9:.0f} GB"


def _remarks(answers: int, run: int, profile: str) -> Iterator[str]:
    if profile != OURS:
        yield (
            f"Priced were steps of {profile}; this suite runs clusterbench's own step, which is other software with "
            "other times and other memory."
        )
    if answers > 1:
        yield f"The first {TO_MEASURE} of each of {answers} networks, each layout once: {run} cases."


def _of_routing(run: Sequence[Candidate]) -> Iterator[str]:
    """What is said of experts: prices are of an even load, and so is all that a dry run knows."""
    uneven = [each.words for each in run if _has_experts(each) and not _is_balanced(each)]
    if any(map(_is_balanced, run)):
        yield (
            "Every expert gets as many tokens, as it was priced: with routing balanced, which 'run --dry' takes as "
            "well. With 'routing: real' tokens go where the router sends them."
        )
    if uneven:
        yield (
            f"Tokens go where the router sends them, which 'run --dry' refuses, in {'; '.join(uneven)}: they do not "
            "come out even over the experts."
        )


def _has_experts(candidate: Candidate) -> bool:
    return candidate.priced.job.shape.has_experts


def _is_balanced(candidate: Candidate) -> bool:
    priced = candidate.priced
    balanced = replace(priced, options={**priced.options, "routing": "balanced"})
    return _has_experts(candidate) and Ours().objection(balanced) is None


def _entry(candidate: Candidate, of: Question) -> Iterator[str]:
    yield "  - benchmark: train_step"
    yield f"    shape: {mapping_of(of.shape)}"
    yield f"    seq_len: {of.seq_len}"
    yield f"    global_batch_size: {of.global_batch_size}"
    yield f"    micro_batch_size: {candidate.priced.job.micro_batch_size}"
    yield f"    layouts: [{candidate.layout}]"
    yield f"    recompute: {candidate.priced.recompute}"
    if _is_balanced(candidate):
        yield "    routing: balanced"
    yield "    dtype: bfloat16"
