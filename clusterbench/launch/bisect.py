"""Runs a case that failed again on parts of its hosts, until those are known that it needs in order to fail.

Which hosts come next is decided in ``suspects.py``. Here each run is made: its folder gets a plan of this one case, as
the suite has it on so many nodes, the launcher is started once, and what the run came to is read from its folder.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from clusterbench.cluster import Cluster, is_same_host
from clusterbench.derive import read
from clusterbench.engine.scratch import scratch_folder
from clusterbench.errors import LaunchError, SuiteError, nearest
from clusterbench.launch.allocation import not_excluded
from clusterbench.launch.bisect_record import INTERRUPTED, NAME, Searched, cut_short
from clusterbench.launch.bisect_words import Ended, Ran, Told
from clusterbench.launch.ending import EndingSignals, Interruption, output_that_may_close
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launch.places import expect_equally_many
from clusterbench.launch.rendezvous import waited_in_vain
from clusterbench.launch.run import RunOptions, excluded_hosts, lock_of
from clusterbench.launch.supervisor import hosts_that_answer, start_once
from clusterbench.launch.suspects import FEWEST_HOSTS, Found, Setting, Try, Wanted, next_step
from clusterbench.launch.symptom import LOST_HOST, NO_END, NO_OUTCOME, Symptom, symptom_of
from clusterbench.planning.same_case import on_cluster
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.lock import NAME as LOCK
from clusterbench.suite import Suite, load_suite
from clusterbench.terminal import fitted, tell
from clusterbench.types import Case, Plan
from clusterbench.words import few, plural, short

NAMED, NOT_NAMED = 1, 3
"""Exit codes. Never 0: that a failure does not come again is no sign of health."""

_LAUNCHER_SAID = "launcher.txt"


@dataclass(frozen=True)
class Failure:
    """A case that failed, in the run that is asked about; ``names`` are those of its hosts and of the launcher's."""

    run: RunFolder
    suite: Suite
    plan: Plan
    case: Case
    symptom: Symptom
    names: frozenset[str]

    @classmethod
    def of(cls, folder: Path, case: str, launched: Iterable[str]) -> Failure:
        """The failure of the case of this name.

        Raises
        ------
        SuiteError
            If the run has no such case, it did not fail, or has no other host beside the one it failed on.
        """
        run = RunFolder.open(folder)
        reading = read(run)
        by_id = {each.id: each for each in reading.plan.cases}
        if case not in by_id:
            raise SuiteError(
                f"--bisect {case}: {folder} has no such case.{nearest(case, by_id)}\nCases: {few(list(by_id))}."
            )
        names = frozenset([*launched, *reading.plan.cluster.hosts, *reading.environment.get("hosts", {})])
        symptom = symptom_of(reading, case, names)
        if symptom is None or symptom.kind == NO_OUTCOME:
            was = "has not run" if symptom else "did not fail, and misses no floor,"
            raise SuiteError(f"--bisect {case}: it {was} in {folder}, so there is nothing to look for.")
        found, hosts = by_id[case], reading.plan.cluster.hosts
        if len(hosts) < found.num_nodes:
            raise SuiteError(f"--bisect {case}: {folder} does not say on which hosts it ran.")
        if found.num_nodes < FEWEST_HOSTS:
            raise SuiteError(
                f"--bisect {case}: it failed on one host, {hosts[0]}, with no other to tell it "
                "from.\nhint: run the suite with --hosts and another host, and compare"
            )
        return cls(run, load_suite(run.path / "suite.yaml", is_planned=True), reading.plan, found, symptom, names)

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.plan.cluster.hosts[: self.case.num_nodes]

    def cluster(self, num_nodes: int) -> Cluster:
        return replace(self.plan.cluster, num_nodes=num_nodes, hosts=())

    def on(self, num_nodes: int) -> Case | None:
        """The case on another number of nodes, once; None where its suite has none."""
        if num_nodes == self.case.num_nodes:
            return replace(self.case, repeats=1)
        case = on_cluster(self.suite, self.case, self.cluster(num_nodes))
        return case and replace(case, repeats=1)


def bisect(command: str, case: str, options: RunOptions) -> int:
    """Looks for the hosts that a failing case of the run ``options.resume`` fails with, and returns the exit code.

    Raises
    ------
    SuiteError
        If the command line is mistaken, or the case did not fail.
    LaunchError
        If too few hosts answer.
    """
    assert options.resume is not None
    _expect_effect(options)
    launch = LaunchCommand.parse(command, os.environ)
    expect_equally_many(launch)
    failure = Failure.of(options.resume, case, launch.hosts)
    hosts, spares = _of_command(launch, failure.hosts, excluded_hosts(options.exclude, launch.hosts))
    wanted = Searched(
        str(failure.run.path.resolve()), case, failure.symptom, launch.launcher.program, options.interface
    )
    folder = RunFolder(_place(options, failure, wanted))
    interruption = Interruption()
    interruption.only_noted()
    with EndingSignals(interruption), output_that_may_close(interruption), scratch_folder("launch") as scratch:
        folder.lock = lock_of(folder.path, options)
        try:
            searched = _gone_on(folder.path, wanted, options)
            inner = _of_the_run(options, failure)
            search = Bisection(launch, failure, inner, folder, searched, Path(scratch), interruption)
            return search.conduct(hosts, spares)
        finally:
            folder.release()


def _place(options: RunOptions, failure: Failure, wanted: Searched) -> Path:
    """The folder of a search for the same that was cut short, or one in which there is nothing yet."""
    if options.out:
        if not cut_short(options.out, wanted):
            RunFolder(options.out).expect_empty()
        return options.out
    first = failure.run.path.with_name(f"{failure.run.name}-bisect")
    *_, last = first, *takewhile(Path.exists, _numbered(first))
    return last if cut_short(last, wanted) else _free(first)


def _gone_on(folder: Path, wanted: Searched, options: RunOptions) -> Searched:
    """The search in ``folder`` so far, once nothing of it is under way any more: a launcher may outlive who started it.

    Raises
    ------
    FolderHeld
        If one of its runs is.
    """
    if (searched := cut_short(folder, wanted)) is None:
        return wanted
    for held in sorted(folder.glob(f"*/{LOCK}")):
        lock_of(held.parent, options).release()
    num_answers = sum(ran.is_answer for ran in searched.runs)
    _say(f"goes on after the {plural(num_answers, 'run')} of {folder}; --out FOLDER begins anew")
    return replace(searched, ended="")


def _expect_effect(options: RunOptions) -> None:
    given = {
        "--hosts": options.hosts,
        "--num-nodes": options.num_nodes,
        "--spares": options.spares,
        "--time-limit": options.time_limit_s,
        "--on-lost-host": options.on_lost_host,
        "--fail-on": options.fail_on,
    }
    if without := [name for name, value in given.items() if value]:
        raise SuiteError(
            f"{without[0]} has no effect with --bisect, which chooses the hosts of each run and ends when it knows.\n"
            "hint: --launch names the hosts, --exclude leaves some out"
        )


def _of_command(
    launch: LaunchCommand, wanted: Sequence[str], excluded: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hosts of a run by the names they have in the launcher's command, and the others there."""
    named = not_excluded(launch.hosts, excluded)
    known = {host: next((name for name in named if is_same_host(host, name)), None) for host in wanted}
    if missing := [host for host in not_excluded(wanted, excluded) if known[host] is None]:
        raise SuiteError(
            f"--launch names no {' and no '.join(missing)}, but the case ran on {', '.join(wanted)}.\n"
            "hint: name these hosts as the run does, and behind them others that may take a place, if there are some"
        )
    hosts = tuple(name for name in known.values() if name is not None)
    return hosts, tuple(name for name in named if name not in hosts)


def _of_the_run(options: RunOptions, failure: Failure) -> RunOptions:
    """The options with what the run was given, where the command line leaves it open."""
    cluster, options = failure.plan.cluster, replace(options, exclude=None)
    if cluster.device == "cuda":
        return replace(options, device="cuda", gpus_per_node=options.gpus_per_node or cluster.ranks_per_node)
    return replace(options, device="cpu", num_ranks=options.num_ranks or cluster.ranks_per_node)


def _numbered(path: Path) -> Iterator[Path]:
    """The path, and the same with -2, -3 and so on."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _free(path: Path) -> Path:
    return next(each for each in _numbered(path) if not each.exists())


@dataclass
class Bisection:
    """A search under way."""

    launch: LaunchCommand
    failure: Failure
    options: RunOptions
    folder: RunFolder
    searched: Searched
    scratch: Path
    interruption: Interruption
    _sizes: dict[int, Case | None] = field(default_factory=dict, init=False)

    def conduct(self, hosts: tuple[str, ...], spares: tuple[str, ...]) -> int:
        """Makes one run after the other, each with a line, and says what was found."""
        self.searched.write(self.folder)
        _say(f"{self.failure.case.id} failed on {', '.join(hosts)}: {self.failure.symptom.sentence}")
        setting = self._reachable(hosts, spares)
        while True:
            step = next_step(setting, self._tries(setting))
            if isinstance(step, Found):
                return self._finish(setting, step)
            ran = self._make(step)
            if self.interruption.asked:
                return self._interrupted()
            if ran.ended == "failed otherwise":
                return self._finish(setting, ran)
            if ran.ended == "not run":
                before = setting
                setting = self._reachable(setting.hosts, setting.spares)
                if setting == before:
                    return self._finish(setting, ran)

    def _tries(self, setting: Setting) -> list[Try]:
        """What counts: no failure on a host that has gone away since."""
        there = {*setting.hosts, *setting.spares}
        return [
            Try(ran.hosts, ran.ended)
            for ran in self.searched.runs
            if ran.ended == "ok" or (ran.ended == "failed" and there.issuperset(ran.hosts))
        ]

    def _reachable(self, hosts: tuple[str, ...], spares: tuple[str, ...]) -> Setting:
        """The search among the hosts that answer; spares take the places of the others where the case needs them."""
        answer = set(hosts_that_answer(self.launch, [*hosts, *spares], self.scratch))
        if silent := [host for host in (*hosts, *spares) if host not in answer]:
            unreachable = tuple(dict.fromkeys([*self.searched.unreachable, *silent]))
            self._note(unreachable=unreachable)
            _say(f"no answer from {', '.join(silent)}: left out, and not blamed for the failure of the case")
        left, more = [host for host in hosts if host in answer], [host for host in spares if host in answer]
        for number in range(len(more) + 1):
            size = len(left) + number
            if size >= FEWEST_HOSTS and self._fits(size):
                return Setting((*left, *more[:number]), tuple(more[number:]), self._fits)
        raise LaunchError(
            f"the {plural(len(left) + len(more), 'host')} that answer are too few for the case, or a number that it "
            f"cannot run on.\nhint: name more hosts in --launch than the {self.failure.case.num_nodes} it ran on"
        )

    def _fits(self, size: int) -> bool:
        return self._case_on(size) is not None

    def _case_on(self, size: int) -> Case | None:
        if size not in self._sizes:
            self._sizes[size] = self.failure.on(size)
        return self._sizes[size]

    # One run

    def _make(self, step: Wanted) -> Ran:
        number, began = len(self.searched.runs) + 1, time.monotonic()
        folder = _free(self.folder.path / f"{number:02d}")
        case = self._case_on(len(step.hosts))
        assert case is not None
        plan = replace(
            self.failure.plan, cluster=self.failure.cluster(len(step.hosts)), repeats=1, cases=(case,), refusals=()
        )
        suite = self.failure.suite
        RunFolder.create(folder, suite.text, plan, {"hosts": {}}, named_files=suite.named_files)
        options = replace(self.options, suite=None, resume=folder, out=None, fingerprint=secrets.token_hex(8))
        with (
            open(folder / _LAUNCHER_SAID, "w", encoding="utf-8", errors="replace") as said,
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            exit_code = start_once(self.launch, step.hosts, options, self.scratch, self.interruption)
        ended, sentence = self._read(folder, case, exit_code)
        if self.interruption.asked:  # what it came to may be what the signal made of it
            ended, sentence = "not run", self.interruption.why
        ran = Ran(number, step.hosts, step.why, ended, sentence, folder.name, round(time.monotonic() - began, 1))
        self._note(runs=(*self.searched.runs, ran))
        note = "" if ran.is_answer else f" ({sentence})"
        _say(f"run {number}, {step.why}: {', '.join(step.hosts)}: {ended}{note}, {ran.elapsed_s:.0f} s")
        return ran

    def _read(self, folder: Path, case: Case, exit_code: int) -> tuple[Ended, str]:
        run = RunFolder.open(folder)
        symptom = symptom_of(read(run), case.id, self.failure.names)
        if symptom is None:
            return "ok", "measured, and no floor is missed"
        if symptom.kind == NO_OUTCOME:
            said = (folder / _LAUNCHER_SAID).read_text(encoding="utf-8", errors="replace")
            if run.cut_off():
                symptom = Symptom(LOST_HOST, f"the launcher ended with {exit_code} while the case was under way")
            elif not (apart := waited_in_vain(said)):
                return "not run", f"the launcher ended with {exit_code}{_last_words(said)}"
            elif not any(ran.is_answer for ran in self.searched.runs):  # they never met: it may be how they are started
                return "not run", apart
            else:
                symptom = Symptom(NO_END, apart)
        if symptom.kind == self.failure.symptom.kind:
            return "failed", symptom.sentence
        if symptom.kind == LOST_HOST:
            return "not run", symptom.sentence
        return "failed otherwise", symptom.sentence

    # The end

    def _finish(self, setting: Setting, end: Found | Ran) -> int:
        answers = [ran for ran in self.searched.runs if ran.is_answer]
        told = Told(self.failure.case.id, self.failure.symptom.sentence, setting.hosts, answers)
        sentence, hint = told.found(end) if isinstance(end, Found) else told.stopped(end)
        named = end.culprits if isinstance(end, Found) else ()
        exit_code = NAMED if named else NOT_NAMED
        kind = end.kind if isinstance(end, Found) else end.ended
        self._note(ended=kind, hosts=named, sentence=sentence, hint=hint, exit_code=exit_code)
        print(fitted(f"{sentence}\nhint: {hint}", sys.stdout))
        _say(f"{plural(len(self.searched.runs), 'run')}: {self.folder.path / NAME}")
        return exit_code

    def _interrupted(self) -> int:
        sentence = f"stopped: {self.interruption.why}; no host is named"
        self._note(ended=INTERRUPTED, sentence=sentence, exit_code=NOT_NAMED)
        _say(f"{sentence}. The same command goes on; what was run is in {self.folder.path / NAME}")
        return NOT_NAMED

    def _note(self, **more: Any) -> None:
        self.searched = replace(self.searched, **more)
        self.searched.write(self.folder)


def _last_words(said: str) -> str:
    """What a launcher said of an error: our last, or its own first; its last line where there is none."""
    lines = [" ".join(line.split()) for line in said.splitlines() if re.search(r"\w", line)]
    ours = [line for line in lines if line.startswith("error: ")]
    its = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return f" and said: {short((ours[-1:] or its[:1] or lines[-1:])[0], 200)}" if lines else ""


def _say(words: str) -> None:
    tell(f"bisect: {words}")
