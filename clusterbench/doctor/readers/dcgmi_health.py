"""DCGM's background watches (``dcgmi health -c``): each incident, with its GPU and DCGM's own words."""

from __future__ import annotations

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import dcgmi_health

_NAME = "dcgm_health"


class DcgmiHealth(HostText):
    """Incidents of the systems that were watched; which these were the report does not say.

    So a healthy one is not judged for the rest: DCGM's manual says that it means no incident by an enabled rule.
    """

    kind = "dcgmi health -c"

    def holds(self, text: str) -> bool:
        return dcgmi_health.is_health(text)

    def read(self, text: str, name: str) -> Said:
        try:
            said = dcgmi_health.parse(text)
        except ToolError as error:
            return Said(not_judged=(NotJudged(_NAME, (name,), str(error), "the whole output"),), hosts=(name,))
        if found := tuple(_found(incident, name) for incident in said.incidents if incident.health != "Healthy"):
            return Said(found=found, hosts=(name,))
        if said.overall != "Healthy":
            why = f"overall health is {said.overall}, and the text ends before the incident"
            return Said(not_judged=(NotJudged(_NAME, (name,), why, "the whole output"),), hosts=(name,))
        healthy = Healthy(_NAME, (name,), "no incident in what DCGM watched")
        why = "it does not say which systems were watched, and since when"
        unknown = NotJudged(_NAME, (name,), why, "dcgmi health -f; dcgmi diag -r 3")
        return Said(healthy=(healthy,), not_judged=(unknown,), hosts=(name,))


def _found(incident: dcgmi_health.Incident, name: str) -> Found:
    what = f"DCGM's watch of its {incident.system} reports {incident.health.lower()}"
    what += f": {incident.words}" if incident.words else ""
    return Found(
        _NAME,
        "error" if incident.health == "Failure" else "warning",
        (name,),
        incident.where,
        what,
        f"{name}: {incident.line}",
        "dcgmi health -c; dmesg | grep -i xid",
        "as the message says; drain the host and run dcgmi diag -r 3 before it goes back to work",
    )
