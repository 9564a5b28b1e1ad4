"""The verb ``doctor``: looks at every host, measures a little where asked, judges and prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

from clusterbench.checks import hosts_of, judge
from clusterbench.diagnoses import Answer
from clusterbench.doctor import Examination, examine
from clusterbench.doctor.accept import Accepted, accepting, read_accepted
from clusterbench.doctor.formats import as_json, as_junit, as_openmetrics
from clusterbench.doctor.text import text
from clusterbench.errors import ClusterbenchError, LaunchError
from clusterbench.launch.agent import Agent
from clusterbench.launch.agents import dismiss
from clusterbench.launch.allocation import gather, measure_clocks
from clusterbench.launch.control import HeadPlane
from clusterbench.launch.ending import Interruption
from clusterbench.launch.messages import Hello
from clusterbench.launch.run import RunOptions, Settled, excluded_hosts, launched, run, take_part
from clusterbench.launchers import detect
from clusterbench.run_folder import RunFolder

Depth = Literal["quick", "short", "deep"]
SUITES = Path(__file__).parent


@dataclass(frozen=True)
class DoctorOptions:
    """What the command line says. ``formats`` are files to write, by the name of their format."""

    depth: Depth
    machine: RunOptions
    accept: Path | None = None
    formats: Mapping[str, Path] = field(default_factory=dict)


def doctor(options: DoctorOptions) -> int:
    """Examines the hosts of this allocation and prints what was found; every process of a launcher calls this.

    Returns
    -------
    int
        1 where something of severity warning or error was found that is not accepted.
    """
    accepted = read_accepted(options.accept) if options.accept else ()
    if options.depth == "quick":
        return take_part(detect(os.environ), partial(_look, options=options, accepted=accepted))
    return run(options.machine, partial(_read, options=options, accepted=accepted))


def _look(
    agent: Agent,
    plane: HeadPlane,
    own: Hello,
    interruption: Interruption,
    *,
    options: DoctorOptions,
    accepted: Sequence[Accepted],
) -> int:
    """Facts alone: nothing runs on the hosts but what reads them."""
    machine = options.machine
    try:
        allocation = gather(plane, own)
        excluded = excluded_hosts(machine.exclude, allocation.names)
        hosts = allocation.only(machine.hosts, machine.num_nodes if launched(plane) else None, excluded)
        measure_clocks(plane, allocation)
        environment = {"hosts": {host: allocation.environments[host] for host in hosts}}
        exit_code = _told(options, accepted, environment, None)
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
    options: DoctorOptions,
    accepted: Sequence[Accepted],
) -> int:
    """What a finished run of the doctor's suite says, with its page."""
    from clusterbench import derive
    from clusterbench.diagnoses import examine as examine_run
    from clusterbench.report import render_report

    report = render_report(directory, fail_on)
    reading = derive.read(directory)
    exit_code = _told(options, accepted, reading.environment, examine_run(reading))
    print(f"report: {report.path}", file=sys.stderr)
    if stopped is None:
        return exit_code
    print(f"stopped before the end: {stopped}", file=sys.stderr)
    return exit_code or stopped.exit_code


def _told(
    options: DoctorOptions,
    accepted: Sequence[Accepted],
    environment: Mapping[str, Any],
    answers: Mapping[str, Answer] | None,
) -> int:
    hosts = hosts_of(environment)
    examination = accepting(examine([host.name for host in hosts], judge(hosts), answers), accepted, date.today())
    print(text(examination))
    _write(options.formats, examination)
    return examination.exit_code


def _write(formats: Mapping[str, Path], examination: Examination) -> None:
    for name, path in formats.items():
        written = {"json": as_json, "junit": as_junit, "openmetrics": as_openmetrics}[name](examination)
        try:
            path.write_text(written + "\n" * (not written.endswith("\n")), encoding="utf-8")
        except OSError as error:
            raise LaunchError(f"--{name} {path} could not be written: {error.strerror}.") from None
