"""What the machines of a site reached so far, by machine, case and figure: what their next runs are held against."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterbench.fingerprint import Fingerprint, nearest_machine
from clusterbench.recorded import Recorded


@dataclass(frozen=True)
class MachineBaseline:
    """What one machine reached.

    Attributes
    ----------
    runs, hosts
        That it was learned of, by name.
    cases
        Their ids, by hash.
    figures
        By hash of the case, then by key of the metric.
    """

    machine: Fingerprint
    runs: tuple[str, ...]
    hosts: tuple[str, ...]
    cases: Mapping[str, str]
    figures: Mapping[str, Mapping[str, Recorded]]


@dataclass(frozen=True)
class Baseline:
    """What a file holds, or a run comes to; ``name`` says which, in words."""

    name: str
    machines: tuple[MachineBaseline, ...]

    def of(self, machine: Fingerprint, accepted: Collection[str] = ()) -> MachineBaseline:
        """What this machine reached.

        Raises
        ------
        SuiteError
            If the nearest is another one in a field that is not among ``accepted``.
        """
        recorded = [each.machine for each in self.machines]
        return self.machines[nearest_machine(recorded, machine, accepted, self.name)]
