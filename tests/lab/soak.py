"""Random faults at random moments: ``python -m tests.lab.soak [NUMBER [SEED [KIND]]]`` prints what came of each.

KIND limits them to those whose name has it, such as ``agent``. SEED is by default one above all in the ledger, a file
of JSON lines to which each soak adds itself, so that faults add up over many; without NUMBER it is summed up. One that
is interrupted (Ctrl-C, SIGTERM) adds what it has judged, and another goes on where it stopped.

One suite of many short cases runs under ``--launch`` on four hosts; workers and what starts them, agents, hosts, links
and the launcher are hit while it does. Some cases use one host, and their limit is shorter than the silence after which
an agent is lost. Counted are finished cases that are not on disk, processes left behind, culprits that are another than
the one that was hit, culprits not named, and cases or runs that went on beyond their deadlines. All have to be 0.
"""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from clusterbench.launch.conductor import SECONDS_TO_START
from clusterbench.run_folder import LOST_HOSTS, SILENT_HOSTS, RunFolder
from clusterbench.types import Outcome
from tests.lab import launchers
from tests.lab.hosts import Lab

CASE_LIMIT_S = 8
NUM_HOSTS = 4
LEDGER = Path(__file__).parent / "soak.jsonl"
SUITE = """
suite: soak
num_nodes: [1, 2]
repeats: 1000
benchmarks:
  - {{benchmark: fault_drill, sleep_s: [0.03, 0.04, 0.05], iterations: 10, warmup: 1, time_limit_s: {limit}}}
  - {{benchmark: all_reduce, min_size: 1KiB, max_size: 1KiB, iterations: 50, time_limit_s: {limit}}}
"""
LONGEST_WAIT_S = 200
"""From a fault to the next sign of progress, for the slowest, a head that is stopped: 90 s without a sign, twice 20 of
probing, and a new start under load."""
LONGEST_ENDING_S = 30
"""From when the loss of a host was told to a new launch."""

WEIGHTS = {
    "kill worker": 30,
    "segfault worker": 20,
    "stop worker": 15,
    "kill zygote": 6,
    "kill spawner": 3,
    "kill agent": 6,
    "stop agent": 3,
    "crash host": 5,
    "cut link": 3,
    "blink link": 6,
    "kill launcher": 6,
    "terminate run": 6,
}
HAVE_NO_CULPRIT = {"blink link", "kill launcher", "terminate run"}
"""A link that comes back is nobody's fault; the others are what a person does, who knows."""


class SoFar(NamedTuple):
    """What a run has ended and said when something is hit, and the hosts that it calls lost or silent by then."""

    outcomes: int
    lines: int
    noted: Mapping[str, Mapping[str, Any]]


@dataclass
class Soak:
    """The state of the whole experiment, run after run."""

    lab: Lab
    folder: Path
    launcher: launchers.Launcher
    chance: random.Random
    weights: dict[str, int]
    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    finished: set[tuple[str, int]] = field(default_factory=set)
    process: subprocess.Popen[str] | None = None
    last_progress: float = 0.0
    said: list[str] = field(default_factory=list)
    is_ending: bool = False
    lost_a_host: int = 0
    """The launcher whose run lost a host: it may be ending, and what is hit in it then has nobody to name it."""

    def run(self, number: int) -> None:
        try:
            while self.faults.total() < number:
                self.run_once(number)
        except KeyboardInterrupt:
            print(f"interrupted after {self.faults.total()} faults of {number}", flush=True)
            self.end()
        self.check_disk()

    def run_once(self, number: int) -> None:
        self.begin()
        while self.is_running() and not self.is_ending and self.faults.total() < number:
            self.wait_for_another_launch()
            if not self.wait_for_progress():
                break
            time.sleep(self.chance.uniform(0.0, 2.0))
            if self.is_running():
                self.strike()
        self.end()

    def begin(self) -> None:
        for host in self.lab.hosts:
            if not self.lab.is_up(host):
                self.lab.revive(host)
            self.lab.heal(host)
        run = self.folder / "run"
        what = (
            ["--resume", str(run)]
            if (run / "plan.jsonl").exists()
            else [str(self.folder / "s.yaml"), "--out", str(run)]
        )
        words = [
            self.launcher.python,
            "-m",
            "clusterbench.cli",
            "run",
            *what,
            "--launch",
            shlex.join(self.launcher.prefix),
        ]
        self.said, self.is_ending = [], False
        self.process = self.lab.login(words, env=self.launcher.environment, stderr=subprocess.PIPE, text=True)
        self.last_progress = time.monotonic()
        threading.Thread(target=self.listen, args=(self.process,), daemon=True).start()

    def listen(self, process: "subprocess.Popen[str]") -> None:
        for line in process.stderr or ():
            self.said.append(line)
            if case := said_to_be_finished(line):
                self.finished.add((case, len(self.finished)))
                self.last_progress = time.monotonic()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_for_progress(self) -> bool:
        since, before = time.monotonic(), len(self.outcomes())
        while self.is_running() and self.last_progress < since:
            if time.monotonic() - since > LONGEST_WAIT_S:
                if len(self.outcomes()) > before:  # the run goes on where its launcher cannot hear it
                    return True
                self.fail("hang", f"no progress for {LONGEST_WAIT_S} s")
                return False
            time.sleep(0.05)
        return self.is_running()

    def wait_for_another_launch(self) -> None:
        """Where a host was lost, until the supervisor has begun again, or the run goes on without it."""
        until = time.monotonic() + LONGEST_ENDING_S
        while self.is_running() and time.monotonic() < until and self.launcher_pid() in (0, self.lost_a_host):
            time.sleep(0.2)
        self.lost_a_host = 0

    def strike(self) -> None:
        kind = self.chance.choices(list(self.weights), list(self.weights.values()))[0]
        before, launcher = self.so_far(), self.launcher_pid()
        target, rank = self.hit(kind)
        if not target:
            return
        print(f"{self.faults.total() + 1:4} {kind} {target}", flush=True)
        if kind not in HAVE_NO_CULPRIT and (found := self.await_name(before, kind, target, rank)) != "named":
            ended = self.outcomes()[before.outcomes :]
            new = [(outcome.status, outcome.rank, outcome.host, outcome.reason) for outcome in ended]
            self.fail(found, f"{kind} {target}: {[outcome for outcome in new if outcome[0] != 'ok']}")
        if rank < 0 and kind not in HAVE_NO_CULPRIT:
            self.lost_a_host = launcher
        self.faults[kind] += 1  # one that is interrupted before it was judged counts nowhere

    def hit(self, kind: str) -> tuple[str, int]:
        """What was hit, and its rank if it is a worker; an empty name if there was nothing to hit just then."""
        if "worker" in kind:
            workers = self.workers()
            if not workers:
                return "", -1
            pid, rank = self.chance.choice(workers)
            number = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "stop": signal.SIGSTOP}[kind.split()[0]]
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return "", -1
            return f"rank {rank}", rank
        if kind == "kill launcher":
            return ("mpirun", -1) if self.signal_launcher(signal.SIGKILL) else ("", -1)
        if kind == "terminate run":
            assert self.process
            self.process.send_signal(signal.SIGTERM)
            self.is_ending = True  # what is hit from here on has nobody left to name it
            return "supervisor", -1
        host = self.chance.choice([host for host in self.lab.hosts if self.agents(host)] or [""])
        if not host:
            return "", -1
        if kind == "crash host":
            self.lab.crash(host)
        elif kind == "cut link":
            self.lab.cut(host)
        elif kind == "blink link":
            self.lab.cut(host)
            time.sleep(self.chance.uniform(0.5, 6.0))
            self.lab.heal(host)
        else:
            found = self.agents(host) if "agent" in kind else self.helpers(host, kind.split()[1])
            if not found:
                return "", -1
            self.lab.run(host, ["kill", "-STOP" if kind == "stop agent" else "-KILL", found[0]])
        return host, -1

    def so_far(self) -> SoFar:
        run = self.folder / "run"
        environment = RunFolder.open(run).environment() if (run / "plan.jsonl").exists() else {}
        noted = {heading: environment.get(heading, {}) for heading in (LOST_HOSTS, SILENT_HOSTS)}
        return SoFar(len(self.outcomes()), len(self.said), noted)

    def await_name(self, before: SoFar, kind: str, target: str, rank: int) -> str:
        """What the first outcome that is not ``ok`` says: ``named``, ``wrong name`` or ``unnamed``.

        What had already finished when it was hit harms nobody; what was said of the same host before says nothing.
        """
        deadline = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline:
            new = self.outcomes()[before.outcomes :]
            if bad := [outcome for outcome in new if outcome.status != "ok"]:
                return _verdict(bad[0], target, rank)
            if (rank >= 0 or "kill zygote" in kind) and len(new) >= 3:
                return "named"  # it died between two cases: nothing was lost
            if rank < 0 and (self.names_in_words(target, before.lines) or self.notes(target, before.noted)):
                return "named"
            if rank >= 0 and not self.is_running() and any("shows no sign of life" in line for line in self.said):
                return "named"  # meanwhile the supervisor ended the run for what had been hit before
            if not self.is_running() and time.monotonic() > deadline - LONGEST_WAIT_S + 5:
                return "unnamed"
            time.sleep(0.2)
        return "unnamed"

    def names_in_words(self, host: str, from_line: int) -> bool:
        """Between two cases a loss belongs to none of them; then what the supervisor says names the host."""
        words = (
            rf"shows no sign of life on host {host};"  # the only one
            rf"|(no answer from|it said:|lost:) [^;]*\b{host}\b|hosts? [^:;]*\b{host}\b[^:;]* (was|were) lost:"
            rf"|interface \S+ of {host} went down|passes on no word of the run on hosts? [^;]*\b{host}\b"
        )
        return any(re.search(words, line) for line in self.said[from_line:])

    def notes(self, host: str, before: Mapping[str, Mapping[str, Any]]) -> bool:
        """Where no case has ranks on a host its loss ends none, and stands with the run's environment."""
        now = self.so_far().noted
        return any(host in now[heading] and now[heading][host] != of.get(host) for heading, of in before.items())

    def workers(self) -> list[tuple[int, int]]:
        """Process and rank of every worker, by the log it writes to."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    log = os.readlink(entry / "fd/1")
                except OSError:
                    continue
                match = re.fullmatch(rf"{self.folder}/run/logs/start-\d+-rank-(\d+)\.log", log)
                if match:
                    found.append((int(entry.name), int(match[1])))
        return sorted(found)

    def agents(self, host: str) -> list[str]:
        if not self.lab.is_up(host):
            return []
        return self.lab.run(host, ["pgrep", "-o", "-f", "clusterbench.cli run"]).stdout.split()

    def helpers(self, host: str, name: str) -> list[str]:
        """Zygotes or spawners of a host."""
        return self.lab.run(host, ["pgrep", "-o", "-f", f"clusterbench.launch.{name}"]).stdout.split()

    def signal_launcher(self, number: int) -> bool:
        if pid := self.launcher_pid():
            os.kill(pid, number)
        return bool(pid)

    def launcher_pid(self) -> int:
        """Of the run's mpirun; 0 where there is none."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words and Path(words[0].decode()).name == "mpirun" and str(self.folder).encode() in b" ".join(words):
                    return int(entry.name)
        return 0

    def outcomes(self) -> list[Outcome]:
        run = self.folder / "run"
        return RunFolder.open(run).outcomes() if (run / "plan.jsonl").exists() else []

    def end(self) -> None:
        assert self.process
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.fail("hang", "the supervisor did not end within 120 s")
            self.process.kill()
        left = self.lab.left_running(within_s=45)
        if left:
            self.fail("orphan", json.dumps(left)[:500])

    def check_disk(self) -> None:
        run = RunFolder.open(self.folder / "run")
        measured = Counter(outcome.case for outcome in run.outcomes() if outcome.status == "ok")
        seen = Counter(case.removesuffix("/") for case, _ in self.finished)
        for case, times in seen.items():
            if measured[case] < times:
                self.fail("lost", f"{case}: said to be finished {times} times, on disk {measured[case]} times")
        observed = Counter((observation.hash, observation.repeat) for observation in run.observations())
        for outcome in run.outcomes():
            if outcome.status == "ok" and not observed[outcome.hash, outcome.repeat]:
                self.fail("lost", f"{outcome.case} repeat {outcome.repeat} has an outcome and no observation")
            if outcome.elapsed_s > SECONDS_TO_START + CASE_LIMIT_S + 25:  # a case may begin with a start
                ended = f"{outcome.status} after '{outcome.phase}': {outcome.reason}"
                self.fail("hang", f"{outcome.case} took {outcome.elapsed_s:.0f} s of {CASE_LIMIT_S}, {ended}")
        if run.problems:
            self.fail("lost", "; ".join(run.problems))

    def fail(self, kind: str, what: str) -> None:
        self.failures[kind] += 1
        print(f"     {kind.upper()}: {what}\n{''.join(self.said[-12:])}", flush=True)


def said_to_be_finished(line: str) -> str:
    """The case that a line of the run's progress calls finished; empty if it says anything else."""
    match = re.match(r"\[\d+/\d+\] (\S+/\S+)(?: repeat \d+(?: of \d+)?)?(?: attempt \d+)? ok\b", line)
    return match[1] if match else ""


def _verdict(outcome: Outcome, target: str, rank: int) -> str:
    """Whether an outcome names what was hit: the host ``target``, or the worker of ``rank``.

    Where a cut link blames none of those that fell silent, its words name the one host whose own link it may be.
    """
    if rank < 0 and (may_be := re.search(r"link of the head's own, (\S+)$", outcome.reason)):
        return "named" if target == may_be[1] else "wrong name"
    if outcome.rank == rank if rank >= 0 else target in (outcome.host, *outcome.lost_hosts):
        return "named"
    return "wrong name" if outcome.rank is not None or outcome.host or outcome.lost_hosts else "unnamed"


KINDS_OF_FAILURE = {
    "lost": "finished cases lost",
    "orphan": "orphans",
    "wrong name": "wrong names",
    "unnamed": "culprits not named",
    "hang": "hangs beyond a deadline",
}


def ledger() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def sum_up() -> int:
    """Prints how often each class of fault was met in all soaks so far, and what came of them."""
    faults, failures = Counter[str](), Counter[str]()
    for soak in ledger():
        faults.update(soak["faults"])
        failures.update(soak["failures"])
    print(f"{faults.total()} faults in {len(ledger())} soaks")
    for kind in WEIGHTS:
        print(f"{faults[kind]:5} {kind}")
    for kind, words in KINDS_OF_FAILURE.items():
        print(f"{failures[kind]:5} {words}")
    return bool(failures)


def main() -> int:
    if len(sys.argv) < 2:
        return sum_up()
    if not sys.argv[1].isdecimal():
        print(__doc__)
        return 2 * (sys.argv[1] not in ("-h", "--help"))
    number = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1 + max((soak["seed"] for soak in ledger()), default=0)
    kind = sys.argv[3] if len(sys.argv) > 3 else ""
    start_s = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="clusterbench-soak-") as name, Lab(NUM_HOSTS) as lab:
        folder = Path(name)
        (folder / "s.yaml").write_text(SUITE.format(limit=CASE_LIMIT_S))
        weights = {name: weight for name, weight in WEIGHTS.items() if kind in name}
        soak = Soak(lab, folder, launchers.mpich(lab, list(lab.hosts), 1), random.Random(seed), weights)
        soak.run(number)
        outcomes = Counter(outcome.status for outcome in soak.outcomes())
    print(f"{soak.faults.total()} faults (seed {seed}) in {(time.monotonic() - start_s) / 60:.0f} min:", end=" ")
    print(", ".join(f"{count} {kind}" for kind, count in soak.faults.most_common()))
    print(f"outcomes: {dict(outcomes)}; {len(soak.finished)} cases were said to be finished")
    for failure, words in KINDS_OF_FAILURE.items():
        print(f"{soak.failures[failure]} {words}")
    with LEDGER.open("a") as file:
        said = {"seed": seed, "kind": kind, "date": f"{date.today()}", "faults": soak.faults, "failures": soak.failures}
        file.write(json.dumps(said) + "\n")
    return bool(soak.failures)


if __name__ == "__main__":
    sys.exit(main())
