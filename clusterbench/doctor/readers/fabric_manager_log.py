"""The fabric manager's log: errors of NVSwitches and NVLinks, and whether it runs."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.doctor import Found, Healthy
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import fabric_manager_log
from clusterbench.tools.xid import sxid
from clusterbench.words import plural


class FabricManagerText(HostText):
    """Errors that the fabric manager logged, each kind once with how often and when last."""

    kind = "the fabric manager's log"

    def holds(self, text: str) -> bool:
        return fabric_manager_log.is_fabric_manager_log(text)

    def read(self, text: str, name: str) -> Said:
        log = fabric_manager_log.parse(text)
        return Said(found=tuple(_found(log, name)), healthy=tuple(_healthy(log, name)), hosts=(name,))


def _found(log: fabric_manager_log.FabricManagerLog, name: str) -> Iterator[Found]:
    for error in log.errors:
        meaning = None if error.sxid is None else sxid(error.sxid, error.is_fatal)
        often = f"{error.count:,} times" if error.count > 1 else "once"
        if error.last:
            often += f", last {error.last}" if error.count > 1 else f", {error.last}"
        what = f"the fabric manager reports an error, {often}"
        if error.is_stopped:
            what = "the fabric manager did not start, or stopped: right on a host without NVSwitches only"
        if meaning is not None:
            what = f"reported SXid {error.sxid} ({meaning.name}), {often}"
        yield Found(
            "fabric_manager_log",
            meaning.severity if meaning else "warning",
            (name,),
            error.where,
            what,
            f"{name}: {error.text}",
            "grep ERROR /var/log/fabricmanager.log; nvidia-smi -q | grep -A3 Fabric",
            meaning.action if meaning else "restart the fabric manager; see the lines around it",
        )


def _healthy(log: fabric_manager_log.FabricManagerLog, name: str) -> Iterator[Healthy]:
    if not log.errors:
        since = f", {log.begins} to {log.ends}" if log.begins else ""
        what = f"no error in {plural(log.num_lines, 'line')} of the fabric manager's log{since}"
        yield Healthy("fabric_manager_log", (name,), what)
