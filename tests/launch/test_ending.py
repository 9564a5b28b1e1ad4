"""What asks a run to end: each in a process of its own, which says how it took it."""

import os
import signal
import subprocess
import sys

import pytest

from clusterbench.launch.ending import ALWAYS, UNLESS_TAKEN, EndingSignals, Interruption, output_that_may_close

pytestmark = pytest.mark.usefixtures("no_ignored_signals")

ALL = (*ALWAYS, *UNLESS_TAKEN)


def said_after(number: signal.Signals) -> str:
    """What asks this process to end when it gets the signal."""
    interruption = Interruption()
    with EndingSignals(interruption), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    return interruption.why


@pytest.mark.parametrize("number", [number for number in ALL if number != signal.SIGALRM])
def test_a_signal_is_named_and_what_was_there_before_comes_back(number):
    before = signal.getsignal(number)
    assert said_after(number) == f"it was interrupted by {number.name}"
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ALL)
def test_what_was_ignored_stays_ignored_whoever_put_a_handler_there_meanwhile(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with EndingSignals(interruption) as signals:
            signal.raise_signal(number)
            signal.signal(number, lambda *_: pytest.fail("a library took it"))
            signals.install()
            signal.raise_signal(number)
        assert not interruption.asked
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_library_that_takes_a_signal_does_not_keep_it():
    interruption = Interruption()
    with EndingSignals(interruption) as signals:
        signal.signal(signal.SIGHUP, lambda *_: pytest.fail("a library took it"))
        signals.install()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)


def test_a_program_that_calls_a_run_keeps_its_own_handlers():
    got = []
    before = signal.signal(signal.SIGUSR1, lambda *_: got.append("own"))
    try:
        interruption = Interruption()
        with EndingSignals(interruption):
            signal.raise_signal(signal.SIGUSR1)
        assert got == ["own"]
        assert not interruption.asked
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_is_raised_once_and_what_was_only_noted_is_raised_afterwards():
    interruption = Interruption()
    interruption.only_noted()
    interruption(signal.SIGHUP, None)
    with pytest.raises(KeyboardInterrupt):
        interruption.raised_again()
    interruption(signal.SIGTERM, None)  # tidying up is not interrupted
    assert interruption.why == "it was interrupted by SIGHUP"


PRINTS = """
import sys
from clusterbench.launch.ending import Interruption, output_that_may_close
interruption = Interruption()
with output_that_may_close(interruption):
    try:
        for line in range(100_000):
            print("x" * 100, file=sys.{stream}, flush=True)
    except KeyboardInterrupt:
        print("tidied up", file=sys.{stream}, flush=True)
        print("tidied up", file=sys.{other}, flush=True)
print(interruption.why, file=sys.{other})
"""


@pytest.mark.parametrize(("stream", "other"), [("stdout", "stderr"), ("stderr", "stdout")])
def test_output_that_is_not_read_any_more_asks_for_the_end_and_no_print_fails(stream, other):
    read, write = os.pipe()
    others = {stream: write, other: subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", PRINTS.format(stream=stream, other=other)], text=True, **others)
    os.close(write)
    os.read(read, 10)
    os.close(read)
    said = "".join(filter(None, process.communicate(timeout=60)))
    assert process.returncode == 0, said
    assert said == "tidied up\nits output is not read any more\n"


def test_output_for_which_the_disk_has_no_room_is_dropped_and_ends_nothing():
    script = PRINTS.format(stream="stdout", other="stderr").replace("100_000", "3")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=True
        )
    assert done.returncode == 0
    assert done.stderr == "it was interrupted\n"  # as it stands before anything asked


def test_output_is_as_it_was_afterwards(capsys):
    before = sys.stdout, sys.stderr
    with output_that_may_close(Interruption()):
        print("heard")
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "heard\n"
