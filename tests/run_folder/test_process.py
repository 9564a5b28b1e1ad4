"""When a process that was written down has ended."""

import os
import signal
from dataclasses import replace

import pytest

from clusterbench.run_folder import process
from clusterbench.run_folder.process import Process


def test_the_one_that_asks_lives():
    assert Process.this().is_gone() is False
    assert Process.this().pid == os.getpid()


def test_a_number_that_another_process_has_by_now_says_that_the_first_is_gone():
    assert replace(Process.this(), started=Process.this().started - 1).is_gone() is True


def test_a_killed_process_is_gone_before_its_parent_asked_for_its_exit_code():
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, str(Process.this().started).encode())
        signal.pause()
    child = replace(Process.this(), pid=pid, started=int(os.read(read, 99)))
    assert child.is_gone() is False
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert child.is_gone() is True
    os.waitpid(pid, 0)
    assert child.is_gone() is True


@pytest.mark.parametrize("other", [{"host": "b"}, {"boot": "b"}, {"namespace": "1.2"}, {"boot": ""}])
def test_of_another_host_boot_or_container_nothing_is_known(other):
    assert replace(Process.this(), pid=2**22, **other).is_gone() is None


def test_one_whose_state_is_hidden_is_not_taken_for_gone(monkeypatch):
    monkeypatch.setattr(process, "_state", lambda pid: None)
    assert replace(Process.this(), pid=1).is_gone() is False
