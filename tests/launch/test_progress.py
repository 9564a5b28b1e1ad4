"""What a person sees while a run takes its time."""

import io
import re
import time

from clusterbench.launch.executions import Execution
from clusterbench.launch.progress import Bar, Lines, progress_on
from clusterbench.types import Observation, Outcome
from tests.launch.test_conductor import case


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watch(progress):
    planned = case("drill/1n4/[x]", repeats=3)
    for number, status, reason in ((1, "ok", ""), (2, "failed", "rank 1 (host a): KeyError: '[bold]'\nhint: none")):
        progress.begin(number, 4, Execution(planned, number - 1, 1))
        progress.reach("spawned")
        outcome = Outcome(planned.id, planned.hash, number - 1, 1, status, reason, elapsed_s=1.25)
        progress.end(outcome, Observation(planned.id, planned.hash, 0, 1, ("a",), [[0.5]]))
    progress.close()


def seconds(case, observation):
    return f"{observation.seconds[0][0]} s an iteration"


def test_without_a_terminal_there_are_two_plain_lines_a_case(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    stream = io.StringIO()
    watch(progress_on(stream, shows=seconds))
    failed = "failed: rank 1 (host a): KeyError: '[bold]' hint: none"
    assert stream.getvalue().splitlines() == [
        "[1/4] drill/1n4/[x] repeat 1 of 3 ...",
        "[1/4] drill/1n4/[x] repeat 1 of 3 ok: 0.5 s an iteration (1.2 s; 0:00 elapsed, about 0:00 left)",
        "[2/4] drill/1n4/[x] repeat 2 of 3 ...",
        f"[2/4] drill/1n4/[x] repeat 2 of 3 {failed} (1.2 s; 0:00 elapsed, about 0:00 left)",
    ]


def test_of_a_list_that_is_run_for_a_time_the_lines_say_how_much_of_that_is_over():
    stream = io.StringIO()
    watch(progress_on(stream, for_s=20.0, spent_s=9.6))
    assert re.findall(r"\(1\.2 s; .*\)", stream.getvalue()) == ["(1.2 s; 0:10 of 0:20)", "(1.2 s; 0:12 of 0:20)"]


def test_a_terminal_gets_a_bar_and_a_line_for_each_finished_case(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = progress_on(stream, shows=seconds)
    assert isinstance(progress, Bar)
    watch(progress)
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "[1/4] drill/1n4/[x] repeat 1 of 3 ok 0.5 s an iteration (1.2 s)\n" in said
    assert "[2/4] drill/1n4/[x] repeat 2 of 3 failed (1.2 s)\n" in said
    assert "rank 1 (host a): KeyError: '[bold]'" in said
    assert "\n    starting the ranks" in said


def test_a_terminal_says_a_reason_once_and_further_in(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    progress = progress_on(stream)
    planned = case("drill/1n4", repeats=2)
    reason = "copies are between GPUs, and rank 0 on host-a is a CPU rank"
    for repeat in (0, 1):
        progress.begin(repeat + 1, 2, Execution(planned, repeat, 1))
        progress.end(Outcome(planned.id, planned.hash, repeat, 1, "skipped", reason), None)
    progress.close()
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert said.count("copies are between GPUs") == 1
    assert "    copies are between GPUs, and rank 0 on host-a is a CPU\n    rank\n" in re.sub(" +\n", "\n", said)


def test_how_long_a_case_took_is_left_out_where_it_would_stand_in_a_line_of_its_own(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "55")
    stream = Terminal()
    watch(progress_on(stream, shows=seconds))
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "[1/4] drill/1n4/[x] repeat 1 of 3 ok 0.5 s an iteration\n" in said
    assert "[2/4] drill/1n4/[x] repeat 2 of 3 failed (1.2 s)\n" in said


def test_lines_are_what_a_log_gets():
    assert isinstance(progress_on(io.StringIO()), Lines)
