import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterbench.engine.tool import find_tool, free_port, listens, run_tool, serving
from clusterbench.errors import NotHere, ToolError

HOST = socket.gethostname()
LISTENS = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
time.sleep(600)
"""


def shell(command):
    return ["/bin/sh", "-c", command]


def running(mark):
    """Processes whose command line holds ``mark``, this one not counted."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if mark in command:
                processes.append(int(entry.name))
    return processes


def gone(mark):
    deadline = time.monotonic() + 60
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running(mark) == []


def test_a_program_leaves_what_it_printed_apart_from_what_it_warned_of():
    finished = run_tool(shell("echo 12.5; echo careful >&2; exit 0"), 60)
    assert (finished.text, finished.warnings) == ("12.5\n", "careful\n")
    assert 0 < finished.elapsed_s < 60


def test_more_output_than_a_pipe_holds_stops_nothing():
    finished = run_tool([sys.executable, "-c", "print('x' * 3_000_000)"], 60)
    assert len(finished.text) == 3_000_001


def test_what_is_no_text_is_no_error():
    assert run_tool(["/bin/sh", "-c", r"printf '\377ok\n'"], 60).text == "\ufffdok\n"


def test_variables_reach_the_program():
    assert run_tool(shell("echo $UCX_TLS"), 60, {"UCX_TLS": "tcp"}).text == "tcp\n"


def test_another_exit_code_than_0_is_an_error_with_its_last_lines():
    with pytest.raises(ToolError) as caught:
        run_tool(shell("echo first; echo Couldn\\'t allocate MR >&2; exit 3"), 60)
    assert str(caught.value) == (
        f"sh on {HOST} ended with exit code 3. It printed at the end:\n    first\n    Couldn't allocate MR\n"
        "    command: /bin/sh -c 'echo first; echo Couldn\\'\"'\"'t allocate MR >&2; exit 3'"
    )


def test_a_signal_is_called_by_its_name():
    with pytest.raises(ToolError) as caught:
        run_tool(shell("kill -SEGV $$"), 60)
    assert str(caught.value).startswith(
        f"sh on {HOST} was ended by signal 11 (Segmentation fault). It printed nothing."
    )


def test_a_program_that_hangs_is_ended_with_all_it_started():
    mark = f"hang-{os.getpid()}-{time.monotonic_ns()}"
    started = time.monotonic()
    with pytest.raises(ToolError) as caught:
        run_tool(shell(f": {mark}; echo begun; sh -c ': {mark}; sleep 600' & wait"), 5)
    assert time.monotonic() - started < 100
    assert f"sh on {HOST} has not ended after 5 s. It printed at the end:\n    begun\n" in str(caught.value)
    assert gone(mark)


def test_a_program_that_ignores_the_request_to_end_is_killed(monkeypatch):
    monkeypatch.setattr("clusterbench.engine.tool.SECONDS_TO_END", 0.3)
    mark = f"deaf-{os.getpid()}-{time.monotonic_ns()}"
    with pytest.raises(ToolError, match=r"has not ended after 0\.3 s"):
        run_tool(shell(f"trap '' TERM; : {mark}; while :; do sleep 0.1; done"), 0.3)
    assert gone(mark)


def test_a_program_and_what_it_started_die_with_the_process_that_started_it():
    mark = f"orphan-{os.getpid()}-{time.monotonic_ns()}"
    words = ["/bin/sh", "-c", f"sh -c ': {mark}; sleep 600; :' & wait", mark]
    owner = subprocess.Popen(
        [sys.executable, "-c", f"from clusterbench.engine import tool; tool.run_tool({words}, 600)"]
    )
    deadline = time.monotonic() + 60
    while (processes := len(running(mark))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes >= 3  # it, the program, and what the program started
    owner.kill()
    owner.wait()
    assert gone(mark)


def test_what_a_program_leaves_running_does_not_keep_it_and_is_ended():
    mark = f"left-{os.getpid()}-{time.monotonic_ns()}"
    finished = run_tool(shell(f"sh -c ': {mark}; sleep 600' & echo done"), 60)
    assert finished.text == "done\n"
    assert finished.elapsed_s < 60
    assert gone(mark)


def test_a_file_that_is_no_program_cannot_be_started(tmp_path):
    path = tmp_path / "tool"
    path.write_text("")
    with pytest.raises(ToolError) as caught:
        run_tool([str(path)], 60)
    assert str(caught.value) == f"{path} cannot be started: Permission denied"


def test_a_missing_program_is_not_here_and_says_how_to_get_it(tmp_path):
    with pytest.raises(NotHere) as caught:
        find_tool("ib_write_nothing", "Debian: apt install perftest")
    assert str(caught.value) == f"ib_write_nothing is not on PATH on {HOST}.\nhint: Debian: apt install perftest"
    with pytest.raises(NotHere) as caught:
        find_tool(f"{tmp_path}/all_reduce_perf", "docs/rdma.md")
    assert str(caught.value) == f"{tmp_path}/all_reduce_perf is no program on {HOST}.\nhint: docs/rdma.md"


def test_a_server_is_there_once_it_listens_and_gone_at_the_end():
    port = free_port()
    assert not listens(port)
    with serving([sys.executable, "-c", LISTENS, str(port)], port) as program:
        assert listens(port)
        while not program.last_line():
            time.sleep(0.01)
        assert program.last_line() == "ready"
    assert not listens(port)


def test_a_server_that_ends_before_it_listens_is_quoted():
    with pytest.raises(ToolError) as caught, serving(shell("echo No IB devices found; exit 1"), free_port()):
        pass
    message = str(caught.value)
    assert message.startswith(
        f"sh on {HOST} ended with exit code 1. It printed at the end:\n    No IB devices found\n    command: "
    )


def test_a_server_that_never_listens_is_ended(monkeypatch):
    monkeypatch.setattr("clusterbench.engine.tool.SECONDS_TO_LISTEN", 0.3)
    mark = f"silent-{os.getpid()}-{time.monotonic_ns()}"
    port = free_port()
    with pytest.raises(ToolError) as caught, serving(shell(f": {mark}; sleep 600; :"), port):
        pass
    assert re.match(
        rf"sh on {HOST} does not listen on port {port} after 0\.3 s\. It printed nothing\.", str(caught.value)
    )
    assert gone(mark)


def test_a_server_does_not_outlive_an_error_of_its_user():
    port = free_port()
    with pytest.raises(ZeroDivisionError), serving([sys.executable, "-c", LISTENS, str(port)], port):
        _ = 1 / 0
    assert not listens(port)
