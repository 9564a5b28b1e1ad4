"""What a search for the hosts of a failure leaves in ``bisect.json``: a person reads it, and a search that was cut
short goes on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterbench.launch.bisect_words import Ran
from clusterbench.launch.symptom import Symptom
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.records import parsed, record_of

NAME = "bisect.json"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Searched:
    """A search as far as it got.

    Attributes
    ----------
    run, case, failure
        What is looked for: how the case failed in the folder of the run.
    launcher, interface
        With which program, and over which network interface, runs were made; they would answer otherwise with others.
    unreachable
        Hosts that did not answer.
    ended
        How it ended; empty while it is under way, and where it was killed.
    hosts
        Those it named: of each fault one, or two that fail only together.
    """

    run: str
    case: str
    failure: Symptom
    launcher: str
    interface: str | None
    runs: tuple[Ran, ...] = ()
    unreachable: tuple[str, ...] = ()
    ended: str = ""
    hosts: tuple[tuple[str, ...], ...] = ()
    sentence: str = ""
    hint: str = ""
    exit_code: int | None = None

    def asks_as(self, other: Searched) -> bool:
        """Whether an answer to the one is an answer to the other."""
        return all(
            getattr(self, name) == getattr(other, name) for name in ("run", "case", "failure", "launcher", "interface")
        )

    def write(self, folder: RunFolder) -> Path:
        return folder.write(NAME, json.dumps(asdict(self), indent=1) + "\n")


def cut_short(folder: Path, wanted: Searched) -> Searched | None:
    """The search for the same in ``folder`` that came to no end; None where there is none that can be read."""
    try:
        found = record_of(Searched, parsed((folder / NAME).read_bytes()))
    except (OSError, ValueError, AttributeError):  # AttributeError: it is no object
        return None
    return found if found.ended in ("", INTERRUPTED) and found.asks_as(wanted) else None
