"""Answers that come from forked processes: all of them, each of its task, and why one did not come."""

from __future__ import annotations

import os
import signal

from clusterbench import forked


def test_each_task_has_its_answer_and_what_was_known_before_is_known_there() -> None:
    known = {number: "x" * number for number in range(9)}
    answered = dict(forked.answers(range(9), lambda number: f"{known[number]} of {os.getpid()}"))
    assert [str(answered[number]).split(" of ")[0] for number in range(9)] == list(known.values())
    assert len({str(answered[number]).split(" of ")[1] for number in range(9)} | {str(os.getpid())}) == 10


def test_an_answer_may_be_longer_than_a_pipe_holds() -> None:
    (answered,) = forked.answers(["x"], lambda text: text * 2_000_000)
    assert answered == ("x", "x" * 2_000_000)


def test_an_error_costs_its_own_answer_and_says_where_it_was_raised() -> None:
    answered = dict(forked.answers([1, 0], lambda number: str(1 // number)))
    assert answered[1] == "1"
    assert isinstance(answered[0], forked.Failed)
    assert answered[0].why.startswith("ZeroDivisionError: ")
    assert "test_forked.py:" in answered[0].why


def test_a_process_that_is_killed_costs_its_own_answer_too() -> None:
    def answer(task: str) -> str:
        os.kill(os.getpid(), getattr(signal, task))
        return "still there"

    answered = dict(forked.answers(["SIGKILL", "SIGINT"], answer))
    assert answered == {"SIGKILL": forked.Failed("its process ended with -9"), "SIGINT": "still there"}
