from __future__ import annotations

from clusterbench.cases import Reading
from clusterbench.checks import checks, hosts_of, judge
from clusterbench.diagnoses import Answer, Diagnosis, Finding
from clusterbench.words import plural


class UnfitHost(Diagnosis):
    """Hosts whose files, before the run, said that something is wrong with them.

    What it looks for
    -----------------
    What 'clusterbench doctor --quick' looks for: every check of 'clusterbench doctor --list' that needs facts only,
    over what each host recorded of itself when the run began.

    Why it matters
    --------------
    A port that is down, a GPU on half of its PCIe lanes or a limit on locked memory costs speed or ends a run, and the
    figure alone does not say so: all hosts may be alike in it.

    How to confirm
    --------------
    'clusterbench doctor' on the host names the file behind each finding, and a command that shows it.

    What usually fixes it
    ---------------------
    The doctor says it for each finding. Run the suite again afterwards.
    """

    def answer(self, reading: Reading) -> Answer:
        hosts = [host for host in hosts_of(reading.environment) if host.environment.get("facts")]
        if not hosts or not reading.ran_here:
            return Answer()
        findings, healthy, unknown = [], 0, 0
        for name, of_hosts in judge(hosts).items():
            kind = checks()[name]
            for host, judged in of_hosts.items():
                for fault in judged.faults:
                    what = f"{fault.where} {fault.what}" if fault.where else fault.what
                    severity = fault.severity or kind.severity
                    findings.append(Finding(f"host {host}", what, severity, fault.evidence, host=host))
                healthy += bool(judged.healthy)
                unknown += bool(judged.unknown)
        order = ("error", "warning", "note")
        findings.sort(key=lambda finding: order.index(finding.severity))
        if not healthy and not findings:
            return Answer()
        without = f"; {unknown} could not be judged, and 'clusterbench doctor' says why" if unknown else ""
        in_order = f"{plural(healthy, 'answer')} of checks of {plural(len(hosts), 'host')} in order{without}"
        return Answer(tuple(findings), (in_order,) if healthy else ())
