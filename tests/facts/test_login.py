from __future__ import annotations

import pytest

from clusterbench.facts import Files
from clusterbench.facts.login import Login
from tests.facts.machine import Machine

MAIN = "/etc/systemd/logind.conf"


def read(folder, **files):
    Machine(files={path: f"[Login]\n{text}\n" for path, text in files.items()}).write(folder)
    facts = Login.read(Files(folder))
    return facts.removes_ipc, facts.said_by


@pytest.mark.parametrize(("word", "removes"), [("yes", True), ("no", False), ("1", True), ("off", False)])
def test_a_setting_is_read(tmp_path, word, removes):
    assert read(tmp_path, **{MAIN: f"#RemoveIPC=yes\nRemoveIPC={word}"}) == (removes, MAIN)


def test_a_comment_tells_what_was_compiled_in(tmp_path):
    assert read(tmp_path, **{MAIN: "#RemoveIPC=no"}) == (False, f"{MAIN} (as compiled)")


def test_the_last_of_the_drop_ins_counts(tmp_path):
    folder = f"{MAIN}.d"
    files = {MAIN: "RemoveIPC=yes", f"{folder}/10-a.conf": "RemoveIPC=no", f"{folder}/90-b.conf": "RemoveIPC=yes"}
    assert read(tmp_path, **files) == (True, f"{folder}/90-b.conf")


def test_of_two_of_one_name_that_of_etc_counts(tmp_path):
    files = {f"{MAIN}.d/50.conf": "RemoveIPC=no", "/usr/lib/systemd/logind.conf.d/50.conf": "RemoveIPC=yes"}
    assert read(tmp_path, **files) == (False, f"{MAIN}.d/50.conf")


def test_without_a_word_of_it_it_is_not_known(tmp_path):
    assert read(tmp_path, **{MAIN: "KillUserProcesses=no"}) == (None, None)
    Machine(files={"/run/systemd/seats/seat0": ""}).write(tmp_path)
    facts = Login.read(Files(tmp_path))
    assert (facts.is_running, facts.unread) == (False, {"logind.conf": "says nothing of RemoveIPC"})
