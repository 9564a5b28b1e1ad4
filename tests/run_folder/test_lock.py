"""One writer a folder: whoever comes first, dies, falls silent, or comes from elsewhere."""

import errno
import json
import os
import signal
import time
from contextlib import suppress
from threading import Thread

import pytest

from clusterbench.errors import RunFolderError
from clusterbench.run_folder import RunFolder, lock
from clusterbench.run_folder.lock import FolderHeld, FolderLost, Lock, sign_of_life
from clusterbench.run_folder.process import Process


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def patient(monkeypatch):
    """Half a second of standing still is enough."""
    monkeypatch.setattr(lock, "SECONDS_OF_STANDSTILL", 0.5)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_BEATS", 0.1)


def changed(folder, **what):
    """The lock of ``folder`` as another process would have written it; it does not beat."""
    path = folder / "alive"
    content = json.loads(path.read_text()) | what
    path.unlink()
    path.write_text(json.dumps(content))
    return content["token"]


def left_by_a_dead_process(folder, name="alive", token="0" * 16, **more):
    folder.mkdir(exist_ok=True)
    process = vars(Process.this()) | {"started": 1}
    (folder / name).write_text(json.dumps({**process, "run": "x", "token": token, "since": "s", "signs": 3, **more}))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def no_links(*_):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def winners(folder, processes, link=os.link):
    """How many of so many processes that start at the same moment get the lock; the others must be refused."""
    begin_read, begin = os.pipe()
    said_read, said = os.pipe()
    children = []
    for number in range(processes):
        if (child := os.fork()) == 0:
            answer = b"?"
            with suppress(BaseException):
                os.link = link
                os.close(begin)
                os.read(begin_read, 1)  # returns for all at once, when the other end is closed
                try:
                    Lock.take(folder, str(number))
                    answer = b"w"
                except FolderHeld:
                    answer = b"r"
            os.write(said, answer)
            signal.pause()
        children.append(child)
    os.close(begin)
    answers = b""
    while len(answers) < processes:
        answers += os.read(said_read, processes)
    left = names(folder)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for descriptor in (begin_read, said_read, said):
        os.close(descriptor)
    assert left == ["alive"]
    assert answers.count(b"w") + answers.count(b"r") == processes, answers
    return answers.count(b"w")


@pytest.mark.parametrize("link", [os.link, no_links], ids=["links", "no links"])
def test_of_many_that_start_at_once_one_wins_and_of_many_that_find_it_killed_one_takes_over(folder, link):
    # The first round begins with nothing, each later one with the lock of the winner before, who was killed.
    assert [winners(folder, 6, link) for _ in range(10)] == [1] * 10


def test_a_run_that_is_refused_says_by_whom_and_leaves_the_folder_as_it_is(folder):
    held = Lock.take(folder, "a")
    before = (folder / "alive").read_bytes()
    with pytest.raises(FolderHeld) as caught:
        Lock.take(folder, "b")
    this = Process.this()
    assert str(caught.value) == (
        f"{folder} is being written by another run: process {this.pid} on host {this.host}, since {held._since}.\n"
        "hint: wait until that run has ended, or end it; if it is certain that it has ended, add --take-over"
    )
    assert caught.value.exit_code == 2
    assert (names(folder), (folder / "alive").read_bytes()) == (["alive"], before)
    held.release()
    Lock.take(folder, "b").release()
    assert not folder.exists()  # it was made for a run that never began


def test_a_released_folder_keeps_what_is_in_it_and_nothing_of_the_lock(folder):
    held = Lock.take(folder, "a")
    (folder / "plan.jsonl").touch()
    held.release()
    held.release()
    assert names(folder) == ["plan.jsonl"]


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"boot": "before the power cut"}, {"namespace": "1.1"}])
def test_a_run_of_another_host_or_boot_holds_its_folder_as_long_as_it_beats(folder, patient, elsewhere):
    Lock.take(folder, "a")
    changed(folder, pid=2**22, **elsewhere)
    heard = []
    with open(folder / "alive", "a") as file:

        def beat():
            time.sleep(0.2)
            file.write(" ")
            file.flush()

        Thread(target=beat).start()
        with pytest.raises(FolderHeld, match=f"process {2**22} on host "):
            Lock.take(folder, "b", say=heard.append)
    start = time.monotonic()
    Lock.take(folder, "b", say=heard.append)
    assert 0.5 < time.monotonic() - start < 30
    assert "seen in 0.5 s at most: does process" in heard[0]
    assert len(heard) == 2


def test_a_reader_that_was_itself_stopped_does_not_take_that_for_silence(folder, monkeypatch):
    Lock.take(folder, "a")
    changed(folder, boot="another")
    looks = []
    monkeypatch.setattr(lock.time, "sleep", looks.append)
    monkeypatch.setattr(lock.time, "monotonic", lambda: 1000.0 * len(looks))  # stopped for 1000 s between two looks
    Lock.take(folder, "b")
    assert len(looks) == lock.SECONDS_OF_STANDSTILL / (2 * lock.SECONDS_BETWEEN_LOOKS)


def test_a_process_of_the_same_run_takes_over_at_once_and_the_one_before_finds_out(folder):
    before = Lock.take(folder, "a")
    before.note({"case": "c", "phase": "warm"})
    changed(folder, host="a lost head")
    head = Lock.take(folder, "a")
    with pytest.raises(FolderLost, match=rf"over by process {os.getpid()} on host .*, since .*; this run has end"):
        before.expect()
    with pytest.raises(FolderLost):
        before.note({"case": "d"})
    before.release()
    assert json.loads((folder / "alive").read_text())["case"] == "c"  # what was under way is still known
    head.note({"case": "e"})
    assert json.loads((folder / "alive").read_text())["case"] == "e"


def test_a_person_may_take_over_from_a_run_that_lives(folder):
    before = Lock.take(folder, "a")
    Lock.take(folder, "b", by_force=True).expect()
    with pytest.raises(FolderLost):
        before.expect()


def test_nothing_is_recorded_or_written_by_a_run_that_lost_its_folder(folder):
    run = RunFolder(folder, Lock.take(folder, "a"))
    Lock.take(folder, "b", by_force=True)
    for write in (lambda: run.record(None, None), lambda: run.write("index.html", "x"), lambda: run.under_way({})):
        with pytest.raises(FolderLost):
            write()
    run.release()
    assert names(folder) == ["alive"]


def test_a_lock_that_was_removed_is_lost_and_a_folder_that_is_gone_is_noticed_elsewhere(folder):
    held = Lock.take(folder, "a")
    (folder / "alive").unlink()
    with pytest.raises(FolderLost, match="has lost its file 'alive'"):
        held.expect()
    folder.rmdir()
    held.expect()
    held.note({})


def test_a_slow_one_does_not_take_over_what_another_took_over_meanwhile(folder, monkeypatch):
    left_by_a_dead_process(folder)
    expect_free = Lock._expect_free
    meanwhile = []

    def slowly(self, path, found, say):
        expect_free(self, path, found, say)
        if not meanwhile:
            meanwhile.append(self)
            meanwhile.append(Lock.take(folder, "faster"))  # all of it, between the look and the deed

    monkeypatch.setattr(Lock, "_expect_free", slowly)
    with pytest.raises(FolderHeld):
        Lock.take(folder, "slow")
    meanwhile[1].expect()
    assert names(folder) == ["alive"]


def test_a_slow_one_does_not_replace_a_new_one_where_the_one_it_saw_was_released(folder, monkeypatch):
    held = Lock.take(folder, "a")
    (folder / "plan.jsonl").touch()
    changed(folder, started=1)
    make = Lock._make
    later = []

    def slowly(self, path):
        if not later and path.name.startswith("alive."):
            later.append(self)
            (folder / "alive").unlink()
            later.append(Lock.take(folder, "new"))
        return make(self, path)

    monkeypatch.setattr(Lock, "_make", slowly)
    with pytest.raises(FolderHeld):
        Lock.take(folder, "slow")
    later[1].expect()
    assert names(folder) == ["alive", "plan.jsonl"]
    held.release()


def test_one_that_died_while_it_took_over_is_itself_taken_over(folder):
    left_by_a_dead_process(folder, token="0" * 16, case="c")
    left_by_a_dead_process(folder, f"alive.{'0' * 16}", token="1" * 16)
    left_by_a_dead_process(folder, f"alive.{'1' * 16}", token="2" * 16)
    Lock.take(folder, "a").expect()
    assert names(folder) == ["alive"]
    assert json.loads((folder / "alive").read_text())["case"] == "c"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\xff",
        "[" * 100_000,
        '{"case": "of a run before there was a lock"}',
        "[1]",
        json.dumps({**vars(Process.this()), "run": "a", "token": "../../x", "since": "", "signs": 0}),
        json.dumps({**vars(Process.this()), "pid": -1, "run": "a", "token": "0" * 16, "since": "", "signs": 0}),
        json.dumps({**vars(Process.this()), "pid": 10**30, "run": "a", "token": "0" * 16, "since": "", "signs": 0}),
        json.dumps({**vars(Process.this()), "run": 1, "token": "0" * 16, "since": "", "signs": 0}),
        json.dumps({**vars(Process.this()), "run": "a", "token": 7, "since": "", "signs": 0}),
    ],
)
def test_a_file_that_is_no_lock_is_waited_for_and_then_replaced(folder, patient, text):
    folder.mkdir()
    (folder / "alive").write_bytes(text.encode("latin-1"))
    start = time.monotonic()
    Lock.take(folder, "a").expect()
    assert time.monotonic() - start > 0.5
    assert names(folder) == ["alive"]


def test_a_lock_beats_by_itself_and_shows_a_sign_only_when_the_run_gets_further(folder, patient):
    held = Lock.take(folder, "a")
    first, sign = (folder / "alive").read_bytes(), sign_of_life(folder)
    deadline = time.monotonic() + 60
    while (folder / "alive").read_bytes() == first:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert sign_of_life(folder) == sign
    held.note({"case": "c"})
    assert sign_of_life(folder) != sign
    held.release()
    assert sign_of_life(folder) == ("", 0)


def test_a_long_note_that_a_short_one_follows_leaves_nothing_behind(folder):
    held = Lock.take(folder, "a")
    held.note({"case": "c" * 5000})
    held.note({"case": "d"})
    assert json.loads((folder / "alive").read_text())["case"] == "d"


def test_a_folder_in_which_nothing_can_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError) as caught:
        Lock.take(tmp_path / "file" / "run", "a")
    assert (
        str(caught.value)
        == f"{tmp_path}/file/run cannot be written: Not a directory.\nhint: name a folder that can be made"
    )
    with pytest.raises(RunFolderError, match=r"File name too long\.\nhint: name a folder that can be made"):
        Lock.take(tmp_path / ("x" * 256), "a")


def test_a_disk_that_fails_is_noticed_where_something_is_written(folder, monkeypatch):
    """As a network disk does whose server has forgotten the folder; FUSE showed it for every call, stat among them."""
    held = Lock.take(folder, "a")

    def stale(*_, **__):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("pathlib.Path.stat", stale)
    held.expect()
