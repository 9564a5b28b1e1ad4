from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.login import NAME, Login


class RemoveIpc(HostCheck):
    """``RemoveIPC`` of systemd's login service: when a user's last session ends, the user's shared memory is removed.

    A job that outlives the session, as of a scheduler beside an ssh login, then fails with "unlink shared memory ... No
    such file" (NCCL's user guide). Users of the system, root among them, are spared. It is the default of systemd, and
    so of most healthy clusters: a note.
    """

    number = 66
    question = "Does shared memory of a job survive the end of a login session?"
    severity = "note"
    source = "/etc/systemd/logind.conf and its drop-ins"
    confirm = "systemd-analyze cat-config systemd/logind.conf | grep RemoveIPC"
    fix = "RemoveIPC=no in /etc/systemd/logind.conf.d/ipc.conf, then systemctl restart systemd-logind"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(Login)
        if not facts.is_running:
            return Judged(not_applicable="systemd does not run here")
        if not known(facts, facts.removes_ipc, NAME):
            return Judged(healthy="shared memory outlives login sessions (RemoveIPC=no)")
        what = "when a user's last login session ends, systemd removes the shared memory of the user's jobs"
        return Judged((Fault("", what, f"{facts.said_by}: RemoveIPC=yes"),))
