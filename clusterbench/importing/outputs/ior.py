"""IOR as cases: one for each phase of each repetition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import TEST, ImportedCase
from clusterbench.tools import ior, ior_json

_OPTIONS = {
    "api": "api",
    "test filename": "file",
    "access": "access",
    "type": "type",
    "ordering in a file": "ordering",
    "ordering inter file": "ordering_inter_file",
    "xfersize": "transfer",
    "blocksize": "block",
    "segments": "segments",
    "stonewallingTime": "stonewall",
}
"""IOR's name -> the option of a case."""


class IorPhases(Output):
    """The rate of all ranks together, from the first open to the last close, and transfers a second.

    A repetition is an attempt. A phase whose data were not what was written is wrong; a test that gave up is a case
    that failed, beside the phases that had ended.
    """

    tool = "IOR"
    question = "How fast does this file system take and give data, by IOR?"

    def holds(self, text: str) -> bool:
        return ior_json.is_ior_json(text) or ior.is_ior(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        tests = ior_json.parse(text) if ior_json.is_ior_json(text) else ior.parse(text)
        return Read([case for test in tests for case in _cases(name, test)], tuple(_notes(name, tests)))


def _cases(name: str, test: ior.Test) -> Iterator[ImportedCase]:
    about = {option: test.options[word] for word, option in _OPTIONS.items() if test.options.get(word)}
    for phase in test.phases:
        where, point = f"{name}:{phase.line}", {TEST: f"IOR {phase.name}", **about}
        if phase.name in test.wrong:
            reason = f"{where}: IOR found other data in the file than were written"
            yield ImportedCase(where, point, test.ranks, test.num_nodes, status="wrong", reason=reason)
            continue
        figures: dict[str, Any] = {"bandwidth": phase.bytes_per_s}
        figures |= {"message_rate": phase.operations_per_s} if phase.operations_per_s else {}
        yield ImportedCase(where, point, test.ranks, test.num_nodes, figures=figures, time_s=phase.seconds)
    if test.error:
        line, words = test.error
        reason = f"{name}:{line}: {words}"
        point = {TEST: "IOR", **about}
        yield ImportedCase(f"{name}:{line}", point, test.ranks, test.num_nodes, status="failed", reason=reason)


def _notes(name: str, tests: tuple[ior.Test, ...]) -> Iterator[str]:
    for test in tests:
        repetitions = test.options.get("repetitions", "")
        ended = max((sum(phase.name == each.name for phase in test.phases) for each in test.phases), default=0)
        if repetitions.isdecimal() and test.phases and ended < int(repetitions):
            yield f"{name}:{test.line}: {ended} of {repetitions} repetitions are in the text"
