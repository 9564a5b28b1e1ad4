"""What is on disk is whole, or named as not whole; a full disk harms nothing that was there."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterbench.cluster import Cluster
from clusterbench.errors import DiskError, RunFolderError
from clusterbench.run_folder import LOST_HOSTS, SPARES, RunFolder, default_path
from clusterbench.types import Case, Expected, Observation, Outcome, Plan, Refusal

CASE = Case(
    "all_reduce/1n2/8B-float32",
    "all_reduce",
    1,
    {"size_bytes": 8, "dtype": "float32"},
    "cpu",
    1,
    2,
    20,
    3,
    60.0,
    expected={"busbw": Expected(1e9, "B/s", "a guess would be worse")},
    expected_outcomes=("failed",),
    environment={"NCCL_ALGO": "Ring"},
    repeats=3,
)
REFUSAL = Refusal(
    "train_step/1n8/tp8", "train_step", {"layout": "tp8"}, 1, "needs 8 ranks", "suite.yaml:6", "ask for more"
)
PLAN = Plan("fabric", "How fast?", Cluster(1, 2, "cpu", hosts=("a",)), 3, (CASE,), (REFUSAL,))
OBSERVATION = Observation(CASE.id, CASE.hash, 0, 1, ("a",), [[0.1, 0.2], [0.1, 0.3]], [{"wrong_elements": 0.0}] * 2)
OUTCOME = Outcome(CASE.id, CASE.hash, 0, 1, "ok", phase="done", elapsed_s=1.5)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", b"suite: fabric\n# \xc3\xa9\n", PLAN, {"hosts": {}})


def test_everything_comes_back_as_it_was_written(run):
    run.record(OUTCOME, OBSERVATION)
    again = RunFolder.open(run.path)
    assert again.plan() == PLAN
    assert again.outcomes() == [OUTCOME]
    assert list(again.observations()) == [OBSERVATION]
    assert (run.path / "suite.yaml").read_bytes() == b"suite: fabric\n# \xc3\xa9\n"
    assert again.problems == []


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process is killed as it calls the disk for the ``number``-th time."""
    left = iter(range(number))

    def killed(call):
        def instead(*arguments, **options):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return call(*arguments, **options)

        return instead

    for name in ("mkdir", "touch", "write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, killed(getattr(Path, name)))
    monkeypatch.setattr(os, "replace", killed(os.replace))


def test_a_folder_whose_run_was_killed_while_it_was_made_is_begun_anew_or_resumed(tmp_path, monkeypatch):
    environment = {"hosts": {}}
    for number in range(100):
        path = tmp_path / str(number)
        with monkeypatch.context() as patched:
            killed_at(number, patched)
            try:
                RunFolder.create(path, b"suite: s\n", PLAN, environment, rates=b"rates", named_files={"m.json": b"{}"})
                break
            except KeyboardInterrupt:
                pass
        if not (path / "plan.jsonl").exists():  # otherwise all is there
            RunFolder.create(path, b"suite: t\n", PLAN, environment)
            assert RunFolder.open(path).rates is None
            assert (path / "suite.yaml").read_bytes() == b"suite: t\n"
            assert not (path / "suite_files").exists()
        assert RunFolder.open(path).plan() == PLAN
        assert RunFolder.open(path).environment() == environment
        assert RunFolder.open(path).outcomes() == []
    assert number > 8


@pytest.mark.parametrize(("name", "text"), [("observations.jsonl", "{}\n"), ("notes.txt", ""), ("plan.jsonl", "")])
def test_a_folder_without_a_plan_but_with_more_than_a_run_makes_is_not_written_over(tmp_path, name, text):
    (tmp_path / "observations.jsonl").touch()
    RunFolder(tmp_path).expect_empty()
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFolderError, match="exists and is not empty"):
        RunFolder(tmp_path).expect_empty()


def test_a_failed_case_has_an_outcome_and_no_observation(run):
    run.record(OUTCOME, None)
    assert list(run.observations()) == []


def test_a_line_cut_in_the_middle_is_left_out_and_named(run):
    run.record(OUTCOME, OBSERVATION)
    file = run.path / "observations.jsonl"
    file.write_bytes(file.read_bytes() * 2)
    os.truncate(file, file.stat().st_size - 20)
    again = RunFolder.open(run.path)
    assert list(again.observations()) == [OBSERVATION]
    assert again.problems == ["observations.jsonl:2 is not a whole line of JSON and was left out"]


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("outcomes.jsonl", ('"repeat":0', '"repeat":"0"'), "'repeat' is \"0\", not a whole number"),
        ("outcomes.jsonl", ('"repeat":0', '"repeat":true'), "'repeat' is true, not a whole number"),
        ("outcomes.jsonl", ('"repeat":0,', ""), "'repeat' is missing"),
        ("outcomes.jsonl", ('"reason"', '"raeson"'), "'raeson' is not known here. Did you mean 'reason'?"),
        ("outcomes.jsonl", ("1.5", "NaN"), "'elapsed_s' is NaN, not a number"),
        (
            "outcomes.jsonl",
            ('"ok"', '"fine"'),
            "'status' is \"fine\", not one of ok, wrong, failed, timeout, out_of_memory, skipped, refused",
        ),
        (
            "observations.jsonl",
            ("[0.1,0.2]", '[0.1,"0.2"]'),
            "'seconds' is [[0.1, \"0.2\"], [0.1, 0.3]], not a list of samples for each rank",
        ),
        ("observations.jsonl", ('["a"]', "[1]"), "'hosts' is [1], not text"),
        (
            "plan.jsonl",
            ('"kind":"refusal"', '"kind":"refused"'),
            "'kind' is \"refused\", not one of plan, case, refusal",
        ),
        (
            "plan.jsonl",
            ('"size_bytes":8', '"size_bytes":9'),
            "it is not what was planned: its identity is ",
        ),
        (
            "plan.jsonl",
            ('"busbw":{', '"busbw[axisMtp]":{'),
            "'expected' holds \"busbw[axisMtp]\", which does not name a figure",
        ),
    ],
)
def test_a_line_that_is_no_record_is_left_out_and_named_with_the_field(run, name, change, problem):
    run.record(OUTCOME, OBSERVATION)
    file = run.path / name
    lines = file.read_text().splitlines(keepends=True)
    (number,) = (number for number, line in enumerate(lines) if change[0] in line)
    lines[number] = lines[number].replace(*change)
    file.write_text("".join(lines))
    again = RunFolder.open(run.path)
    read = again.plan() if name == "plan.jsonl" else list(getattr(again, name.split(".")[0])())
    assert again.problems[0].startswith(f"{name}:{number + 1} was left out: {problem}")
    assert name == "plan.jsonl" or read == []


def test_lines_of_the_plan_that_are_gone_without_a_trace_are_counted(run):
    file = run.path / "plan.jsonl"
    head, case, _ = file.read_text().splitlines(keepends=True)
    file.write_text(head + case + case)
    again = RunFolder.open(run.path)
    assert again.plan().cases == (CASE,)
    assert again.problems == [
        "plan.jsonl:3 says again what an earlier line says, and was left out",
        "plan.jsonl: 0 of 1 refusals can be read",
    ]


def test_without_its_first_line_a_plan_is_an_error_that_says_why(run):
    file = run.path / "plan.jsonl"
    file.write_text(file.read_text().replace('"ranks_per_node":2', '"ranks_per_node":null'))
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(run.path).plan()
    assert str(caught.value) == (
        f"{file} has no line of kind 'plan' that can be read (plan.jsonl:1 was left out: in 'cluster' 'ranks_per_node' "
        "is null, not a whole number), so the cluster of the run is unknown.\n"
        "hint: put the file back from a copy of the folder, or start the run again"
    )


def test_an_environment_that_is_damaged_is_left_out_and_named(run):
    file = run.path / "environment.json"
    file.write_text('{"hosts": {"a": {}}, "loaded": [1], "interface": "eth0"}')
    assert run.environment() == {"hosts": {"a": {}}, "interface": "eth0"}
    file.write_text('{"hosts": {"a": ' + "[" * 100 + "]" * 100 + "}}")
    assert run.environment() == {}
    assert run.problems == [
        "environment.json: 'loaded' does not describe hosts and was left out",
        "environment.json is not a whole object of JSON and was left out",
    ]


def test_the_next_case_starts_on_a_line_of_its_own_behind_a_cut_one(run):
    (run.path / "outcomes.jsonl").write_text('{"case": "cut')
    run.record(OUTCOME, None)
    assert run.outcomes() == [OUTCOME]


def test_a_full_disk_is_named_and_leaves_no_half_line(run, monkeypatch):
    run.record(OUTCOME, OBSERVATION)
    before = (run.path / "observations.jsonl").read_bytes()
    write, room = os.write, [10]

    def fill(descriptor, data):
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: room.pop()])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(RunFolderError) as caught:
        run.record(OUTCOME, OBSERVATION)
    assert str(caught.value) == (
        f"{run.path} cannot be written: No space left on device.\n"
        f"hint: free space, then continue with --resume {run.path}"
    )
    assert (run.path / "observations.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("number", "left", "words", "hint"),
    [
        (errno.EROFS, {}, "Read-only file system", "make it writable"),
        (errno.ENOSPC, {"f_favail": 0}, "No space left on device",
         "delete files: the disk has room, but no inode for another file ('df -i' tells)"),
        (errno.ENOSPC, {"f_bavail": 0}, "No space left on device", "free space"),
        (errno.ENOSPC, {"f_bavail": 0, "f_favail": 0}, "No space left on device", "free space"),
        (errno.ENOSPC, {"f_files": 0, "f_favail": 0}, "No space left on device", "free space"),
        (errno.EFBIG, {}, "File too large",
         "raise the limit on the size of a file ('ulimit -f'), or that of its file system"),
        (errno.ESTALE, {}, "Stale file handle", "have the disk mounted again or repaired ('dmesg' tells what failed)"),
    ],
)  # fmt: skip
def test_a_disk_that_takes_nothing_is_named_with_what_to_do(run, monkeypatch, number, left, words, hint):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    disk = SimpleNamespace(**{"f_files": 100, "f_favail": 9, "f_bavail": 9, **left})
    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    with pytest.raises(DiskError) as caught:
        run.record(OUTCOME, None)
    assert str(caught.value) == (
        f"{run.path} cannot be written: {words}.\nhint: {hint}, then continue with --resume {run.path}"
    )


def test_of_a_report_into_a_folder_that_cannot_be_written_no_run_is_to_be_continued(run, monkeypatch):
    """'report' of an archive said 'continue with --resume', of a run that was complete."""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DiskError) as caught:
        RunFolder.open(run.path).write("index.html", "page")
    assert str(caught.value) == (
        f"{run.path} cannot be written: Read-only file system.\n"
        "hint: make it writable, or copy the folder and take the copy"
    )


def test_a_folder_that_was_moved_or_deleted_is_said_to_be(run):
    run.path.rename(run.path.with_name("elsewhere"))
    with pytest.raises(DiskError) as caught:
        run.record(OUTCOME, None)
    assert str(caught.value) == (
        f"{run.path}/outcomes.jsonl cannot be written: No such file or directory.\n"
        "hint: it was moved or deleted while the run wrote there; --resume with the new name does the rest"
    )


def test_a_limit_of_the_file_system_is_met_for_real(run):
    program = f"""
import resource
from pathlib import Path
from clusterbench.errors import RunFolderError
from clusterbench.run_folder import RunFolder
from tests.run_folder.test_run_folder import OBSERVATION, OUTCOME
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
run = RunFolder.open(Path({str(run.path)!r}))
try:
    for _ in range(100):
        run.record(OUTCOME, OBSERVATION)
except RunFolderError as error:
    print(error)
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert f"{run.path} cannot be written: {os.strerror(errno.EFBIG)}." in done.stdout
    saved = list(run.observations())
    assert len(saved) > 5
    assert all(observation == OBSERVATION for observation in saved)
    assert run.problems == []


def test_a_folder_with_something_in_it_is_not_taken(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path, b"", PLAN, {})
    assert str(caught.value) == f"{tmp_path} exists and is not empty.\nhint: name another folder with --out"


def test_a_folder_of_a_run_is_not_taken_and_may_be_resumed(tmp_path):
    RunFolder.create(tmp_path / "run", b"", PLAN, {})
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(tmp_path / "run", b"", PLAN, {})
    assert str(caught.value) == (
        f"{tmp_path}/run exists and is not empty.\n"
        f"hint: name another folder with --out; 'clusterbench run --resume {tmp_path}/run' continues the run in it"
    )


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", b"", PLAN, {})


def test_a_folder_that_was_not_begun_cannot_be_continued(tmp_path, monkeypatch):
    """The disk is full when all is there but the plan; the message names nothing to resume."""

    def full(path, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(RunFolderError) as caught:
            RunFolder.create(tmp_path / "run", b"", PLAN, {})
    assert not (tmp_path / "run" / "plan.jsonl").exists()
    assert str(caught.value).endswith("No space left on device.\nhint: free space")
    RunFolder(tmp_path / "run").expect_empty()


@pytest.mark.parametrize(
    ("name", "what"),
    [("elsewhere", "elsewhere: there is no such folder."), ("a.txt", "a.txt is a file, and not the folder of a run.")],
)
def test_what_is_no_folder_is_said(tmp_path, name, what):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path / name)
    assert str(caught.value) == (
        f"{tmp_path}/{what}\n"
        "hint: name the folder that 'clusterbench run' printed, e.g. reports/2026-03-02-1410-tp_scale"
    )


def test_a_folder_that_is_no_run_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is not the folder of a run: it has no file plan.jsonl, observations.jsonl, outcomes.jsonl.\n"
        "hint: name the folder that 'clusterbench run' printed, e.g. reports/2026-03-02-1410-tp_scale"
    )


def test_two_runs_of_one_minute_get_two_folders(tmp_path):
    now = datetime(2026, 3, 2, 14, 10)
    first = default_path(tmp_path, "fabric", now)
    assert first.name == "2026-03-02-1410-fabric"
    first.mkdir()
    assert default_path(tmp_path, "fabric", now).name == "2026-03-02-1410-fabric-2"


def test_a_derived_file_is_replaced_whole(run):
    run.write("rows.csv", "a\n")
    run.write("rows.csv", "b\n")
    assert (run.path / "rows.csv").read_text() == "b\n"
    assert not list(run.path.glob("*.new"))


def test_a_derived_file_for_which_there_is_no_room_leaves_the_one_before_and_no_half_of_its_own(run):
    run.write("index.html", "whole")

    def pieces():
        yield "half" * 100_000
        raise OSError(errno.ENOSPC, "No space left on device", str(run.path / "index.html.new"))

    with pytest.raises(DiskError, match="No space left"):
        run.write("index.html", pieces())
    assert (run.path / "index.html").read_text() == "whole"
    assert not list(run.path.glob("*.new"))


def test_one_line_is_one_case(run):
    run.record(OUTCOME, OBSERVATION)
    (line,) = (run.path / "observations.jsonl").read_text().splitlines()
    assert json.loads(line)["seconds"] == [[0.1, 0.2], [0.1, 0.3]]


def test_hosts_that_take_part_again_are_noted_with_how_often_they_were_lost(run):
    run.write("environment.json", "{}")
    run.record(replace(OUTCOME, status="failed", lost_hosts=("n1",)), None)
    run.note(LOST_HOSTS, {"n2": "it is gone", "n3": "it is gone"})
    run.note(LOST_HOSTS, {"n4": "it is gone"})
    run.note(SPARES, {"n5": "was not needed"})
    run.add_hosts({"n1.fabric.example": {}, "n2": {}})
    assert run.environment() == {
        "hosts": {"n1.fabric.example": {}, "n2": {}},
        "lost hosts": {"n3": "it is gone", "n4": "it is gone"},
        "returned hosts": {"n1": 1, "n2": 1},
        "spares": {"n5": "was not needed"},
    }
    run.add_hosts({"n3": {}, "n4": {}})
    assert "lost hosts" not in run.environment()
    assert run.environment()["returned hosts"] == dict.fromkeys(("n1", "n2", "n3", "n4"), 1)
