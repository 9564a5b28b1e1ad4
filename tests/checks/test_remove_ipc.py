from __future__ import annotations

from clusterbench.checks.remove_ipc import RemoveIpc
from clusterbench.facts.login import Login
from tests.facts.machine import laptop, training


def login(removes, running=True, **unread):
    return Login(is_running=running, removes_ipc=removes, said_by="/etc/systemd/logind.conf (as compiled)", **unread)


def test_the_default_of_most_distributions_is_found():
    (fault,) = RemoveIpc().judge(training(login(True))).faults
    assert fault.what == "when a user's last login session ends, systemd removes the shared memory of the user's jobs"
    assert fault.evidence == "/etc/systemd/logind.conf (as compiled): RemoveIPC=yes"


def test_no_is_in_order():
    assert RemoveIpc().judge(training(login(False))).healthy == "shared memory outlives login sessions (RemoveIPC=no)"


def test_where_no_file_speaks_of_it_it_is_not_judged():
    unread = {"logind.conf": "says nothing of RemoveIPC"}
    (said,) = RemoveIpc().judge_all([training(login(None, unread=unread))]).values()
    assert said.unknown[0].why == "logind.conf says nothing of RemoveIPC"


def test_a_container_without_the_service_and_a_laptop_are_not_asked():
    assert RemoveIpc().judge(training(login(True, running=False))).not_applicable.startswith("systemd does not run")
    assert RemoveIpc().judge(laptop(login(True))).not_applicable
