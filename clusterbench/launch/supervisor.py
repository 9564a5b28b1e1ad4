"""The outer form of a run: starts the launcher, and again on the hosts that are left when some are lost.

Inside one mpirun a lost host ends everything, and some launchers then hang, or end with exit code 0. So this process is
no part of the run: it reads what is on disk, and ends a launcher that shows no sign of life. The run's folder must be
one that every host sees, since any of them may be the next head.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, Self, TextIO

import psutil

from clusterbench import own_copy
from clusterbench.cluster import is_same_host
from clusterbench.engine.scratch import scratch_folder
from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch.allocation import not_excluded
from clusterbench.launch.ending import EndingSignals, Interrupted, Interruption, output_that_may_close
from clusterbench.launch.executions import again, left_to_do
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launch.places import Loss, Places
from clusterbench.launch.run import RunOptions, excluded_hosts, lock_of
from clusterbench.launch.spawner import die_with
from clusterbench.launchers import host_that_ended_first
from clusterbench.run_folder import ABSENT_HOSTS, LOST_HOSTS, SPARES, RunFolder, default_path
from clusterbench.run_folder.attempts import unrecorded
from clusterbench.run_folder.lock import NAME as LOCK
from clusterbench.run_folder.lock import IsGone, sign_of_life
from clusterbench.run_folder.process import ENDED, RUNNING, Process
from clusterbench.suite import load_suite
from clusterbench.terminal import fitted, tell
from clusterbench.types import Blame, Outcome
from clusterbench.words import listed

SECONDS_TO_BEGIN = 240.0
SECONDS_WITHOUT_A_SIGN = 90.0
"""After the first sign. Longer than an agent's silence and than the report of a large run."""
SECONDS_UNHEARD = 30.0
"""In which a run got further, and its launcher passed on no word of it."""
MOST_IN_VAIN = 2
"""Starts of the launcher one after the other that bring no outcome and lose no host."""
SECONDS_TO_PROBE = 20.0
SECONDS_TO_LEAVE = 15.0
SECONDS_TO_END = 5.0
SECONDS_TO_END_IN_ORDER = 60.0
LINES_KEPT = 400

_PR_SET_CHILD_SUBREAPER = 36
_ANSWER = "clusterbench can be started here"
_LOST_HEAD = "the head of the run said nothing"
_FAULT = re.compile(r"EXIT CODE: 11\b|signal 11\b|Segmentation fault")
"""What MPICH, Open MPI and srun say of a process that touched memory it does not have."""
_UNREACHED = "no process can be started there any more, and the launcher ended the run"


def supervise(command: str, options: RunOptions) -> int:
    """Runs a suite under a launcher to its end, whatever becomes of hosts, and returns the exit code.

    Raises
    ------
    SuiteError
        If the command or the suite is mistaken.
    LaunchError
        If the launcher cannot be started, or ends before the run begins.
    """
    launch = LaunchCommand.parse(command, os.environ)
    excluded = excluded_hosts(options.exclude, launch.hosts)
    places = Places.of(launch, _spares(options), excluded)
    # A host may have another name there than in the command.
    unknown = not_excluded(excluded, launch.hosts)
    options = replace(options, exclude=",".join(unknown) or None)
    if options.resume is None:
        folder = _new_folder(options)
        RunFolder(folder).expect_empty()
    else:
        folder = RunFolder.open(options.resume).path
    options = replace(options, fingerprint=secrets.token_hex(8))
    interruption = Interruption()
    interruption.only_noted()
    with (
        EndingSignals(interruption),
        output_that_may_close(interruption),
        scratch_folder("launch") as scratch,
        _Writer(folder, options, partial(_is_gone, launch, Path(scratch))) as writer,
    ):
        return _supervise(launch, places, options, writer, Path(scratch), interruption)


def _spares(options: RunOptions) -> int:
    """How many hosts wait to replace others.

    Raises
    ------
    SuiteError
        If another option says that none can.
    """
    if options.spares and options.on_lost_host == "stop":
        raise SuiteError("--spares has no effect with --on-lost-host stop: no host is replaced when the run ends.")
    if options.spares and options.hosts:
        raise SuiteError(
            "--spares has no effect with --hosts, as a spare is none of those.\n"
            "hint: name in --launch the hosts that take part, in their order, and the spares behind them"
        )
    return options.spares


def _supervise(
    launch: LaunchCommand,
    places: Places,
    options: RunOptions,
    writer: _Writer,
    scratch: Path,
    interruption: Interruption,
) -> int:
    folder = writer.folder
    supervised = _Supervised(launch, interruption)
    notes = _Notes(dict.fromkeys(places.spares, "was not needed"))
    in_vain = 0
    while True:
        before, hosts = _num_outcomes(folder), places.hosts
        with _nothing_left_behind():
            supervised.run(launch.on(hosts, scratch) + _inner(launch, options, folder, hosts), hosts, folder)
        writer.take_back()
        if supervised.exit_code == SuiteError.exit_code and not supervised.began:
            return SuiteError.exit_code  # the head has said which mistake it is
        has_begun = (folder / "plan.jsonl").exists()
        if interruption.asked and not has_begun:
            raise Interrupted(f"stopped before the run began: {interruption.why}.")
        if not has_begun and not places.spares:
            raise LaunchError(_why_not_begun(launch, supervised.exit_code))
        if has_begun and (interruption.asked or _is_over(options, folder)):
            notes.write(writer)
            return _settle(writer.directory(), supervised.exit_code, options.fail_on)
        loss = places.after(hosts_that_answer(launch, [*hosts, *places.spares], scratch))
        named = supervised.named(hosts)
        words = f"; it said: {named[1]}" if named else ""
        tell(f"clusterbench: the launcher ended with {supervised.exit_code}{words}; {loss.sentence}")
        notes.add(loss, has_begun)
        if not has_begun:
            if not loss.replaced or interruption.asked:
                raise LaunchError(_why_not_begun(launch, supervised.exit_code))
            places = loss.left
            continue
        if loss.lost:
            first = named[:1] if named and named[0] not in loss.lost else ()
            why = f"{_UNREACHED}{_in_its_place(loss)}{words if first else ''}"
            _record_loss(writer.directory(), loss.lost, why, "host", first)
        elif named:
            _record_loss(writer.directory(), named[:1], f"the launcher ended the run and said: {named[1]}", "process")
        notes.write(writer)
        in_vain = in_vain + 1 if _num_outcomes(folder) == before and not loss.lost else 0
        if in_vain == MOST_IN_VAIN or not loss.left.hosts or interruption.asked or options.on_lost_host == "stop":
            return _settle(writer.directory(), supervised.exit_code, options.fail_on)
        places = loss.left


def start_once(
    launch: LaunchCommand, hosts: Sequence[str], options: RunOptions, scratch: Path, interruption: Interruption
) -> int:
    """Starts the launcher on these hosts for a run's folder that has its plan; returns the launcher's exit code."""
    assert options.resume is not None
    supervised = _Supervised(launch, interruption)
    with _nothing_left_behind():
        supervised.run(
            launch.on(hosts, scratch) + _inner(launch, options, options.resume, hosts), hosts, options.resume
        )
    return supervised.exit_code


def hosts_that_answer(launch: LaunchCommand, hosts: Sequence[str], scratch: Path) -> list[str]:
    """The hosts on which the launcher can start a process."""
    with _nothing_left_behind():
        return _alive(launch, hosts, scratch)


class _Notes:
    """What environment.json is to say of hosts that were lost and of spares, once there is one."""

    def __init__(self, of_spares: dict[str, str]) -> None:
        self._of_spares = of_spares
        self._lost: dict[str, str] = {}
        self._absent: dict[str, str] = {}

    def add(self, loss: Loss, has_begun: bool) -> None:
        """Notes a loss; a host that was lost before the run began was none of those that ran."""
        if has_begun:
            self._lost.update(dict.fromkeys(loss.lost, "no process could be started there any more"))
        else:
            self._absent.update(dict.fromkeys(loss.lost, "no process could be started there before the run began"))
        self._absent.update(dict.fromkeys(loss.silent, "no process could be started there when a spare was wanted"))
        self._of_spares.update(loss.of_spares)

    def write(self, writer: _Writer) -> None:
        for heading, of_hosts in ((LOST_HOSTS, self._lost), (ABSENT_HOSTS, self._absent), (SPARES, self._of_spares)):
            if of_hosts:
                writer.directory().note(heading, of_hosts)
            of_hosts.clear()


def _in_its_place(loss: Loss) -> str:
    return "".join(f"; {spare} takes the place of {host}" for host, spare in loss.replaced.items())


class _Writer:
    """The right to write into the run's folder: the head's while it lives, and this process's before and after it."""

    def __init__(self, folder: Path, options: RunOptions, is_gone: IsGone) -> None:
        self.folder = folder
        self._lock = lock_of(folder, options, is_gone)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def take_back(self) -> None:
        """Ends the right of the head, wherever that was."""
        self._lock = self._lock.taken_back()

    def directory(self) -> RunFolder:
        directory = RunFolder.open(self.folder)
        directory.lock = self._lock
        return directory


def _why_not_begun(launch: LaunchCommand, exit_code: int) -> str:
    if exit_code != 0:
        return f"the launcher ended with {exit_code} before the run began; see what it said above"
    written, common = shlex.join(launch.words), shlex.join(launch.in_common_options())
    hint = f"--launch '{common}', which every mpirun takes"
    if written == common:
        hint = f"'{common} hostname' shows what this launcher starts"
    return f"the launcher ended with 0, but the run never began: '{written}' started nothing.\nhint: {hint}"


def _new_folder(options: RunOptions) -> Path:
    """Where the run goes; a suite that cannot be read is found out before anything is launched."""
    assert options.suite is not None
    suite = load_suite(options.suite, baseline=options.baseline)
    return options.out or default_path(Path("reports"), suite.name, datetime.now())


def _inner(launch: LaunchCommand, options: RunOptions, folder: Path, hosts: Sequence[str]) -> list[str]:
    """The command that the launcher starts in every process: begins the run, or goes on with it."""
    words = own_copy.command("clusterbench.cli", "run")
    if (folder / "plan.jsonl").exists():
        words += ["--resume", str(folder), "--on-lost-host", "continue"]
    else:
        words += [str(options.suite), "--out", str(folder)]
        words += ["--rates", str(options.rates)] if options.rates is not None else []
        words += ["--baseline", str(options.baseline)] if options.baseline else []
        words += ["--accept-other", ",".join(options.accepted)] if options.accepted else []
    wanted = not_excluded(options.hosts or (), [host for host in launch.hosts if host not in hosts])
    given = {
        "--hosts": ",".join(wanted) or None,
        "--exclude": options.exclude,
        "--num-nodes": options.num_nodes and min(options.num_nodes, len(wanted or hosts)),
        "--device": options.device,
        "--num-ranks": options.num_ranks,
        "--gpus-per-node": options.gpus_per_node,
        "--ranks-per-gpu": options.ranks_per_gpu,
        "--ranks-per-agent": "all" if options.ranks_per_agent == 0 else options.ranks_per_agent,
        "--interface": options.interface,
        "--fingerprint": options.fingerprint,
        "--time-limit": _time_left(options),
        "--fail-on": ",".join(options.fail_on) if options.fail_on else None,
    }
    for name, value in given.items():
        if value is not None:
            words += [name, str(value)]
    return words


def _time_left(options: RunOptions) -> int | None:
    if options.time_limit_s is None:
        return None
    return max(1, round(options.began + options.time_limit_s - time.monotonic()))


def _is_over(options: RunOptions, folder: Path) -> bool:
    """Whether nothing is left to do, or no time to do it in."""
    directory = RunFolder.open(folder)
    out_of_time = options.time_limit_s is not None and time.monotonic() >= options.began + options.time_limit_s - 1
    plan, outcomes = directory.plan(), directory.outcomes()
    lacking = unrecorded(plan, outcomes, directory.observations())
    return out_of_time or not (left_to_do(plan, outcomes, lacking) or again(plan, outcomes))


def _num_outcomes(folder: Path) -> int:
    return len(RunFolder.open(folder).outcomes()) if (folder / "plan.jsonl").exists() else 0


def _record_loss(directory: RunFolder, lost: Sequence[str], why: str, blame: Blame, first: Sequence[str] = ()) -> None:
    """The outcome of the case that was under way, where the launcher ended the head before it could say anything.

    ``first`` is where a process ended before hosts were found to be lost.
    """
    if cut_off := directory.cut_off():
        which = f"{listed('host', lost)} {'was' if len(lost) == 1 else 'were'}"
        outcome = Outcome(
            **cut_off,
            status="failed",
            reason=f"{which} lost: {why}",
            host=(*first, *lost)[0],
            lost_hosts=(*first, *lost),
            blame=blame,
        )
        directory.record(outcome, None)


def _settle(directory: RunFolder, said: int, fail_on: tuple[str, ...] | None) -> int:
    """The verdict on what is on disk; printed unless the head ended with it, and so has printed it."""
    from clusterbench.report import render_report  # pandas and matplotlib, only now

    report = render_report(directory, fail_on)
    if said != report.verdict.exit_code:
        tell(f"{report.text}\nreport: {report.link}")
    return report.verdict.exit_code


def _alive(launch: LaunchCommand, hosts: Sequence[str], scratch: Path) -> list[str]:
    """The hosts on which the launcher can start a process, each tried by itself, and again where it did not answer."""
    first = _answering(launch, hosts, scratch)
    missing = [host for host in hosts if host not in first]
    again = _answering(launch, missing, scratch)
    return [host for host in hosts if host in first or host in again]


def _answering(launch: LaunchCommand, hosts: Sequence[str], scratch: Path) -> list[str]:
    program = [sys.executable, "-c", f"print({_ANSWER!r})"]
    tries = [(host, _start(launch, [*launch.alone_on(host, scratch), *program])) for host in hosts]
    deadline = time.monotonic() + SECONDS_TO_PROBE
    # A launcher may end with 0 and have started nothing.
    return [host for host, process in tries if _ANSWER in _output(process, deadline)]


def _output(process: subprocess.Popen[bytes], deadline: float) -> str:
    """What a launcher printed that has ended by then; empty, and it is ended, where it has not."""
    output = b""
    with suppress(subprocess.TimeoutExpired):
        output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    _kill(process)
    return output.decode(errors="replace")


def _is_gone(launch: LaunchCommand, scratch: Path, process: Process) -> bool | None:
    """Whether a process has ended, also one on a host of the launcher, which is asked there; None if nobody knows.

    A head that lost its supervisor a moment ago is still ending, and so is asked for again.
    """
    host = next((host for host in launch.hosts if is_same_host(host, process.host)), None)
    if (is_gone := process.is_gone()) is not None or host is None:
        return is_gone
    program = own_copy.command("clusterbench.run_folder.process", json.dumps(vars(process)))
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    while time.monotonic() < deadline:
        with _nothing_left_behind():
            said = _output(_start(launch, [*launch.alone_on(host, scratch), *program]), deadline)
        if ENDED in said:
            return True
        if RUNNING not in said:
            break
        time.sleep(1.0)
    return None


class _Supervised:
    """The launcher under way."""

    def __init__(self, launch: LaunchCommand, interruption: Interruption) -> None:
        self._launch = launch
        self._interruption = interruption
        self.exit_code = 0
        self.began = False
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._heard_at = 0.0

    def named(self, hosts: Sequence[str]) -> tuple[str, str] | None:
        """The host on which the launcher says that a process ended first, and its words.

        None where that process was ended by a memory fault: agents talk through MPI, and in a library of MPI they all
        fault when the process of another host is gone. The launcher names the first of which it heard.
        """
        said = list(self._said)
        for at, line in enumerate(said):
            if (host := host_that_ended_first(line)) in hosts:
                assert host is not None
                return None if any(map(_FAULT.search, said[at : at + 3])) else (host, line.strip(" ="))
            if _LOST_HEAD in line:  # the head is the launcher's first process
                return hosts[0], line
        return None

    def _listen(self, stream: IO[bytes], own: TextIO) -> None:
        with stream:
            for data in stream:
                line = data.decode(errors="replace").rstrip("\n")
                self._said.append(line)
                self._heard_at = time.monotonic()
                print(fitted(line, own), file=own, flush=True)

    def run(self, words: Sequence[str], hosts: Sequence[str], folder: Path) -> None:
        """Returns once the launcher is gone, of its own accord or because nothing came from it any more."""
        self._said.clear()
        self.began = False
        process = _start(self._launch, words)
        assert process.stdout is not None
        assert process.stderr is not None
        both = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))  # MPICH says who ended on stdout
        listeners = [Thread(target=self._listen, args=streams, daemon=True) for streams in both]
        for listener in listeners:
            listener.start()
        last_sign, seen = time.monotonic() + SECONDS_TO_BEGIN - SECONDS_WITHOUT_A_SIGN, _sign(folder)
        self._heard_at = time.monotonic()
        end_by, was_alive, is_unheard = None, False, False
        while process.poll() is None:
            time.sleep(0.1)
            if (now := _sign(folder)) != seen:
                seen, last_sign, self.began = now, time.monotonic(), True
                if not is_unheard and last_sign > self._heard_at + SECONDS_UNHEARD:
                    is_unheard = True
                    unheard = f"the launcher passes on no word of the run on {listed('host', hosts)}"
                    tell(f"clusterbench: {unheard}, {_further(folder)}")
            is_alive = (folder / LOCK).exists()
            if was_alive and not is_alive and end_by is None:
                end_by = time.monotonic() + SECONDS_TO_LEAVE  # the run has ended in order; only the launcher has not
            was_alive = is_alive
            if self._interruption.asked and end_by is None:
                end_by = time.monotonic() + SECONDS_TO_END_IN_ORDER
                process.send_signal(signal.SIGTERM)
            if time.monotonic() > (end_by or last_sign + SECONDS_WITHOUT_A_SIGN):
                silent = f"does not end, or shows no sign of life on {listed('host', hosts)}"
                tell(f"clusterbench: the launcher {silent}; it is ended")
                break
        _kill(process)
        for listener in listeners:
            listener.join(SECONDS_TO_END)  # what the launcher's last children hold open is not waited for
        self.exit_code = process.returncode


def _sign(folder: Path) -> tuple[object, float]:
    """Changes when the run shows that it gets further."""
    return sign_of_life(folder), _modified(folder / "outcomes.jsonl")


def _further(folder: Path) -> str:
    return f"which goes on in {folder}: {_num_outcomes(folder)} outcomes are there"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Ends what launchers leave when they end: MPICH's, stopped while it starts, forgets the ssh it has just started.

    Those have sessions of their own; as a subreaper this process becomes their parent, and so knows them.
    """
    this, libc = psutil.Process(), ctypes.CDLL(None)
    before = set(this.children(recursive=True))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        left = [process for process in this.children(recursive=True) if process not in before]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, SECONDS_TO_END)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _start(launch: LaunchCommand, words: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        # A session of its own: a Ctrl-C at the terminal is for the supervisor to pass on, once.
        return subprocess.Popen(
            words,
            env={**launch.launcher.beside_others, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),  # and with it all that it started on the hosts
        )
    except OSError as error:
        raise LaunchError(f"{words[0]} cannot be started: {error.strerror}") from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the launcher and all it started on this host."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
            return
