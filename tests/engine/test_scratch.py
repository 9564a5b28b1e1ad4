"""Folders of killed processes are removed by the next one, and no other is."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from clusterbench.engine import scratch
from clusterbench.engine.scratch import scratch_folder

MAKER = """
import sys, time
from clusterbench.engine.scratch import scratch_folder
with scratch_folder("agent") as path:
    open(f"{path}/file", "w").close()
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def maker():
    process = subprocess.Popen([sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_a_folder_ends_with_its_context(folder):
    with scratch_folder("agent") as path:
        assert Path(path).parent == folder
        assert Path(path).stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_not_that_of_a_living_one():
    killed, left = maker()
    living, used = maker()
    killed.kill()
    killed.communicate()
    assert left.exists()
    with scratch_folder("launch"):
        assert not left.exists()
        assert (used / "file").exists()
    living.communicate()  # its input ends, and with it the context
    assert not used.exists()


def test_a_stopped_process_keeps_its_folder():
    stopped, path = maker()
    os.kill(stopped.pid, signal.SIGSTOP)
    with scratch_folder("agent"):
        assert path.exists()
    stopped.kill()
    stopped.communicate()


@pytest.mark.parametrize("change", ["host", "user", "link", "name"])
def test_what_is_not_surely_ours_stays(folder, monkeypatch, change):
    killed, path = maker()
    killed.kill()
    killed.communicate()
    if change == "host":  # or another boot, or a container: their numbers of processes are not ours
        path = path.rename(folder / f"{path.name[:-9]}x-{path.name[-8:]}")
    if change == "user":
        monkeypatch.setattr(scratch.os, "getuid", lambda: os.geteuid() + 1)
    if change == "name":
        path = path.rename(folder / f"my-{path.name}")
    if change == "link":
        target = path.rename(folder / "target")
        path.symlink_to(target)
    with scratch_folder("agent"):
        assert path.exists()
        assert (path / "file").exists()
