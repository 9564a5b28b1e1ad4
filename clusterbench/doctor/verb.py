"""The verb ``doctor``: looks at every host, measures a little where asked, judges and prints."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

from clusterbench.benchmarks import benchmarks
from clusterbench.benchmarks._sustained import SustainedBenchmark
from clusterbench.checks import hosts_of, judge
from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.unlike_hosts import of_facts
from clusterbench.doctor import Examination, Found, examine
from clusterbench.doctor.accept import Accepted, accepting, read_accepted, without_effect
from clusterbench.doctor.formats import as_json, as_junit, as_openmetrics
from clusterbench.doctor.logs import examine_logs
from clusterbench.doctor.prolog import DRAIN, NONE, age_s, drain_list, line, within
from clusterbench.doctor.text import text
from clusterbench.errors import ClusterbenchError, LaunchError, SuiteError
from clusterbench.launch.agent import Agent
from clusterbench.launch.agents import dismiss
from clusterbench.launch.allocation import gather, measure_clocks, not_excluded
from clusterbench.launch.control import HeadPlane
from clusterbench.launch.ending import Interruption
from clusterbench.launch.messages import Hello
from clusterbench.launch.over_ssh import reach, start_on
from clusterbench.launch.run import RunOptions, Settled, excluded_hosts, launched, run, take_part
from clusterbench.launchers import detect, named_hosts
from clusterbench.run_folder import RunFolder
from clusterbench.terminal import fitted, tell
from clusterbench.types import Case
from clusterbench.words import few

Depth = Literal["quick", "short", "deep"]


def depth(quick: bool, deep: bool) -> Depth:
    """How much is done, by two flags."""
    return "deep" if deep else "quick" if quick else "short"


@dataclass(frozen=True)
class Asked:
    """What the command line says; the names are those of its options.

    Attributes
    ----------
    limit_s
        Of ``--prolog``; None without it.
    drain_on
        Checks whose findings alone make exit code 1, apart by commas.
    hosts
        Without a launcher: where to start over ssh.
    not_reached
        Of these, or of the hosts of ``--launch``, the ones that were not, each ``HOST=why``.
    """

    depth: Depth
    limit_s: float | None = None
    drain_on: str | None = None
    accept: Path | None = None
    json: Path | None = None
    junit: Path | None = None
    openmetrics: Path | None = None
    page: Path | None = None
    out: Path | None = None
    device: str | None = None
    num_nodes: int | None = None
    hosts: tuple[str, ...] | None = None
    exclude: str | None = None
    not_reached: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The command line of a process that examines its own host, or with others those of a launcher."""
        given = {
            "drain-on": self.drain_on,
            "accept": self.accept,
            "json": self.json,
            "junit": self.junit,
            "openmetrics": self.openmetrics,
            "page": self.page,
            "out": self.out,
            "device": self.device,
            "num-nodes": self.num_nodes,
            "exclude": self.exclude,
        }
        words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
        lost = [word for each in self.not_reached for word in ("--not-reached", each)]
        return ["doctor", *([] if self.depth == "short" else [f"--{self.depth}"]), *words, *lost]

    @property
    def suite(self) -> Path | None:
        """What is measured; nothing where facts are enough."""
        return None if self.depth == "quick" else Path(__file__).with_name(f"{self.depth}.yaml")


def answer(asked: Asked) -> int:
    """Examines hosts, prints what was found, and gives the exit code; every process of a launcher calls this.

    Returns
    -------
    int
        1 where something of severity warning or error was found that is not accepted, or of ``drain_on``.

    Raises
    ------
    SuiteError, LaunchError
        For a mistake in the command line or its files; if hosts that are reached cannot be started on.
    """
    if asked.limit_s is not None:
        return within(asked.limit_s, replace(asked, drain_on=asked.drain_on or NONE).words, age_s())
    drain_on = drain_list(asked.drain_on) if asked.drain_on is not None else None
    accepted = read_accepted(asked.accept) if asked.accept else ()
    started = detect(os.environ)
    if started is None and not asked.hosts:  # else another host may be the one that writes
        _expect_folders(asked)
    shown = partial(_shown, asked, drain_on, accepted=accepted)
    if asked.hosts and started is None:
        return _over_ssh(asked, asked.hosts, shown)
    if asked.suite is None:
        return take_part(started, partial(_look, asked=asked, shown=shown), "the doctor")
    own_all = 0 if started is not None and started.launcher.kind == "by hand" else None
    options = RunOptions(
        asked.suite,
        out=asked.out,
        device=asked.device,
        num_nodes=asked.num_nodes,
        hosts=asked.hosts,
        exclude=asked.exclude,
        ranks_per_agent=own_all,
        seconds_of=seconds_of,
    )
    return run(options, partial(_read, asked=asked, shown=shown))


SECONDS_OF_A_CASE, SECONDS_OF_ONE_ON_A_CPU, SECONDS_OF_A_SUSTAINED_ONE = 1.0, 0.5, 5.0
"""With starts and waits: 31 cases took 34 s on two CPU cores. The second is by the rule of settling clocks."""


def seconds_of(case: Case) -> float:
    """What a case of the doctor's suites is reckoned to take."""
    kind = benchmarks()[case.benchmark]
    if case.device == "cpu":
        return SECONDS_OF_ONE_ON_A_CPU
    is_sustained = issubclass(kind, SustainedBenchmark) and kind.settles(case.point)
    return SECONDS_OF_A_SUSTAINED_ONE if is_sustained else SECONDS_OF_A_CASE


def answer_of_logs(asked: Asked, files: Sequence[Path]) -> int:
    """The same of files that people have at hand, and nothing else: ``asked`` says what to accept and to write.

    Raises
    ------
    SuiteError
        If a file cannot be read or holds nothing that is known, or an option asks for hosts.
    """
    for option in ("num_nodes", "hosts", "exclude", "device", "out"):
        if getattr(asked, option) is not None:
            raise SuiteError(f"--{option.replace('_', '-')} has no effect with --log, which looks at no host.")
    drain_on = drain_list(asked.drain_on) if asked.drain_on is not None else None
    accepted = read_accepted(asked.accept) if asked.accept else ()
    _expect_folders(asked)
    examination, taken = examine_logs(files)
    tell("\n".join(taken))
    return _shown(asked, drain_on, examination, accepted, of_files=True)


Shown = Callable[[Examination], int]


def _over_ssh(asked: Asked, hosts: Sequence[str], shown: Shown) -> int:
    """Starts the doctor on the hosts that are reached; where none is, this process shows that, and writes the files."""
    hosts = not_excluded(hosts, named_hosts(asked.exclude)) if asked.exclude else hosts
    if not hosts:
        raise SuiteError(f"--exclude {asked.exclude} leaves none of the hosts of --hosts.")
    reached = reach(hosts)
    if not reached.hosts:
        _expect_folders(asked)
        return shown(with_lost(examine((), {}), _not_reached(reached.why_not)))
    hosts, lost = reached.hosts, dict(reached.why_not)
    while True:
        ended = start_on(hosts, replace(asked, hosts=None, exclude=None, not_reached=_not_reached(lost)).words)
        left = tuple(host for host in hosts if host not in ended.failed)
        for host, why in ended.failed.items():
            tell(f"{host}: {why}")
        if ended.said or not ended.failed or not left:
            break
        # they answered, and could not be joined into one run: the others are examined without them
        tell(f"started again without {few(list(ended.failed))}")
        hosts, lost = left, {**lost, **ended.failed}
    print(fitted(ended.said, sys.stdout), end="")
    if ended.failed and ended.code in (0, 1):
        raise LaunchError(f"the processes on {few(list(ended.failed))} ended with another exit code than 0 and 1")
    return ended.code


def _not_reached(why_not: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{host}=ssh {host}: {why}" for host, why in why_not.items())


def _look(
    agent: Agent,
    plane: HeadPlane,
    own: Hello,
    interruption: Interruption,
    *,
    asked: Asked,
    shown: Shown,
) -> int:
    """Facts alone: nothing runs on the hosts but what reads them."""
    try:
        allocation = gather(plane, own)
        excluded = excluded_hosts(asked.exclude, allocation.names)
        is_rest = bool(asked.not_reached) and not launched(plane)  # what it lacks of its hosts is told by name
        hosts = allocation.only(asked.hosts, None if is_rest else asked.num_nodes, excluded)
        measure_clocks(plane, allocation)
        environment = {"hosts": {host: allocation.environments[host] for host in hosts}}
        said = _examined(asked, environment, None)
        interruption.only_noted()  # a reader that is gone, as head, costs neither the files nor the exit code
        exit_code = shown(said)
    except ClusterbenchError as error:
        interruption.only_noted()
        dismiss(plane, error.exit_code)
        raise Settled(error) from None
    dismiss(plane, exit_code)
    return exit_code


def _read(
    directory: RunFolder,
    stopped: ClusterbenchError | None,
    fail_on: tuple[str, ...] | None,
    *,
    asked: Asked,
    shown: Shown,
) -> int:
    """What a finished run of the doctor's suite says, with its page."""
    from clusterbench import derive
    from clusterbench.diagnoses import examine as examine_run
    from clusterbench.report import render_report

    report = render_report(directory, fail_on)
    reading = derive.read(directory)
    exit_code = shown(_examined(asked, reading.environment, examine_run(reading)))
    tell(f"report: {report.link}")
    if stopped is None:
        return exit_code
    tell(f"stopped before the end: {stopped}")
    return exit_code or stopped.exit_code


def _examined(asked: Asked, environment: Mapping[str, Any], answers: Mapping[str, Answer] | None) -> Examination:
    hosts = hosts_of(environment)
    if answers is None:  # nothing ran: of the diagnoses one judges facts
        answers = {"unlike_hosts": of_facts(environment)}
    return with_lost(examine([host.name for host in hosts], judge(hosts), answers), asked.not_reached)


def _shown(
    asked: Asked,
    drain_on: Sequence[str] | None,
    examination: Examination,
    accepted: Sequence[Accepted],
    of_files: bool = False,
) -> int:
    """Prints the verdict and then writes the files, so that one that cannot be written costs no verdict."""
    for words in without_effect(examination, accepted, date.today()):
        tell(words)
    examination = accepting(examination, accepted, date.today())
    said = text(examination) if drain_on is None else line(examination, drain_on)
    print(said if drain_on is not None else fitted(said, sys.stdout), flush=True)
    try:
        _write_all(asked, examination, of_files)
    except SuiteError as error:
        if drain_on is None:
            raise
        tell(str(error))  # a scheduler goes by the line and its exit code
    return examination.exit_code if drain_on is None else int(said.startswith(DRAIN))


def _write_all(asked: Asked, examination: Examination, of_files: bool) -> None:
    for name, path, form in (
        ("json", asked.json, as_json),
        ("junit", asked.junit, as_junit),
        ("openmetrics", asked.openmetrics, as_openmetrics),
    ):
        if path is not None:
            _write(name, path, form(examination))
    if asked.page is not None:
        from clusterbench.doctor.catalogue import sources
        from clusterbench.doctor.examination_page import examination_page  # numpy and templates, only now

        # Of files the evidence names each; what a check reads on a host was not read.
        _write("page", asked.page, examination_page(examination, {} if of_files else sources(), date.today()))


def with_lost(examination: Examination, not_reached: Sequence[str]) -> Examination:
    """The examination with hosts that were asked for and not reached, each ``HOST=why``."""
    parts = dict(each.split("=", 1) for each in not_reached)
    lost = tuple(
        Found(
            name="not_reached",
            severity="error",
            hosts=(host,),
            where="",
            what="was not reached",
            evidence=why,
            confirm=f"ssh -o BatchMode=yes {host} true",
            fix="switch it on, or mend its network, its sshd or this user's key there",
        )
        for host, why in parts.items()
    )
    return replace(examination, hosts=(*examination.hosts, *parts), found=(*lost, *examination.found))


def _write(option: str, path: Path, written: str) -> None:
    """Replaces a file in one step: a collector of metrics reads it at any time. A pipe or device is written into."""
    target = path.resolve()
    beside = target if target.exists() and not target.is_file() else target.with_name(f"{target.name}.new")
    try:
        beside.write_text(written if written.endswith("\n") else f"{written}\n", encoding="utf-8")
        if beside != target:
            os.replace(beside, target)
    except OSError as error:
        if beside != target:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        raise _unwritable(option, path, error.strerror) from None


def _expect_folders(asked: Asked) -> None:
    """Before anything is looked at: that of each file to write is there, and none is in its place."""
    for option in ("json", "junit", "openmetrics", "page"):
        path: Path | None = getattr(asked, option)
        if path is not None and path.is_dir():
            raise _unwritable(option, path, os.strerror(errno.EISDIR))
        if path is not None and not path.parent.is_dir():
            raise _unwritable(option, path, os.strerror(errno.ENOENT))


def _unwritable(option: str, path: Path, why: str | None) -> SuiteError:
    return SuiteError(f"--{option} {path} cannot be written: {why}.")
