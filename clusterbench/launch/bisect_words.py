"""What a search for the hosts of a failure came to, in words: a sentence, and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clusterbench.launch.suspects import TRIES, Found
from clusterbench.words import plural

Ended = Literal["failed", "ok", "failed otherwise", "not run"]


@dataclass(frozen=True)
class Ran:
    """One run that was made: ``ended`` is ``failed`` where it was the failure that is looked for."""

    number: int
    hosts: tuple[str, ...]
    why: str
    ended: Ended
    sentence: str
    folder: str
    elapsed_s: float

    @property
    def is_answer(self) -> bool:
        """Whether it shows that the case fails with these hosts, or that it does not."""
        return self.ended in ("failed", "ok")


@dataclass(frozen=True)
class Told:
    """A search that has ended.

    Parameters
    ----------
    case
        Its name.
    failure
        How it failed in the run that was asked about.
    hosts
        Among which the search was.
    ran
        The runs that are answers.
    """

    case: str
    failure: str
    hosts: Sequence[str]
    ran: Sequence[Ran]

    def stopped(self, last: Ran) -> tuple[str, str]:
        """Of a search that a run ended which shows nothing of the failure."""
        on = ", ".join(last.hosts)
        if last.ended == "not run":
            apart = ""
            hint = (
                f"see {last.folder}/launcher.txt; where the processes did not find each other, try the launcher there "
                "by hand"
            )
            if len(last.hosts) == 2 and all(any(host in ran.hosts for ran in self.ran) for host in last.hosts):
                apart = "Both ran with other hosts, so the way between the two is suspect. "
                hint = (
                    f"look at cables, ports and routes between {' and '.join(last.hosts)}; {last.folder}/launcher.txt "
                    "has what the launcher said"
                )
            return (
                f"stopped: {self.case} could not be run on {on}, though each of them answers: {last.sentence}. "
                f"{apart}No host is named.",
                hint,
            )
        return (
            f"stopped: on {on} {self.case} failed in another way ({last.sentence}) than the one that is looked for "
            f"({self.failure}). No host is named.",
            f"look at run {last.folder} first: two faults at once cannot be told apart by halving",
        )

    def found(self, found: Found) -> tuple[str, str]:
        """Of a search that came to its end."""
        if found.kind == "not reproduced":
            return (
                f"not reproduced: {self.case} ended well in {TRIES} of {TRIES} runs on {', '.join(self.hosts)}. "
                "Whether a host is at fault is not judged.",
                "what comes and goes shows more surely with more iterations or repeats in the suite",
            )
        if found.kind == "comes and goes":
            return (
                f"comes and goes: {self.case} failed in {_failed(self.ran)} of {plural(len(self.ran), 'run')}, and "
                f"ended well on hosts with which it failed. No host is named; the fewest it failed on: "
                f"{', '.join(found.hosts)}.",
                "make it fail surely, with more iterations in the suite, and bisect that run",
            )
        return self._named(found) if found.culprits else self._not_told(found)

    def _not_told(self, found: Found) -> tuple[str, str]:
        if not any(ran.ended == "ok" for ran in self.ran) and len(self.ran) > 1:
            return (
                f"everywhere: {self.case} failed in all {len(self.ran)} runs, whichever hosts took part. No host is "
                "named.",
                "look at what all hosts share: the case, its limits and floors, software, storage, switches",
            )
        on = ", ".join(found.hosts)
        if found.kind == "several":
            return (
                f"several: {self.case} fails on {on}, with more than one fault. No host is named.",
                "take out what other findings of the run suspect, and bisect again",
            )
        return (
            f"together: {self.case} fails on {on}, and with the hosts that there are none of them can be told from the "
            "others. No host is named.",
            f"name more than these {len(found.hosts)} hosts in --launch: they take places in turn",
        )

    def _named(self, found: Found) -> tuple[str, str]:
        parts = [self._culprit(culprit) for culprit in found.culprits]
        out = [culprit[0] for culprit in found.culprits]
        if found.without_it:
            parts.append(f"Without {' and '.join(out)} it ended well on {', '.join(found.without_it)}.")
        else:
            parts.append("There is more that makes it fail, of which no host is named.")
        look = "look at cables, ports and routes between the two; " if found.kind == "pair" else ""
        return " ".join(parts), f"{look}leave out {' and '.join(out)} with --exclude {','.join(out)}"

    def _culprit(self, culprit: tuple[str, ...]) -> str:
        with_it = [ran for ran in self.ran if set(culprit) <= set(ran.hosts)]
        failed = f"{self.case} failed in {_failed(with_it)} of {plural(len(with_it), 'run')}"
        if len(culprit) == 1:
            return f"{culprit[0]}: {failed} with it."
        only_one = [ran for ran in self.ran if len(set(culprit) & set(ran.hosts)) == 1]
        return (
            f"{' and '.join(culprit)} together: {failed} with both, and in {_failed(only_one)} of {len(only_one)} with "
            "only one of them."
        )


def _failed(ran: Sequence[Ran]) -> int:
    return sum(each.ended == "failed" for each in ran)
