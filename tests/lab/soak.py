"""Random faults at random moments: ``python -m tests.lab.soak [NUMBER [SEED [KIND]]]`` prints what came of each.

KIND limits them to those whose name has it, such as ``agent`` or ``stop agent,link``. SEED is by default one above all
in the ledger, a file of JSON lines to which each soak adds itself, so that faults add up over many; without NUMBER it
is summed up. One that is interrupted (Ctrl-C, SIGTERM) adds what it has judged, and another goes on where it stopped.

One suite of many short cases runs under ``--launch`` on four hosts; workers and what starts them, agents, hosts, links,
the disk, clocks and the launcher are hit while it does (``strikes.py``). Some cases use one host, and their limit is
shorter than the silence after which an agent is lost. Counted are finished cases that are not on disk, processes left
behind, culprits that are another than the one that was hit, culprits not named, cases or runs that went on beyond their
deadlines, and cases that fail for what costs nothing but time. All have to be 0.
"""

import json
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
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from clusterbench.launch.conductor import SECONDS_TO_START
from clusterbench.run_folder import HOSTS_WITHOUT_LINK, LOST_HOSTS, SILENT_HOSTS, RunFolder
from clusterbench.types import Outcome
from tests.lab import launchers
from tests.lab.hosts import Lab
from tests.lab.strikes import A_CASE, KINDS, NOT_ASKED, THE_HOST, THE_RUN, TIME, Strikes, clocks, disk

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


class SoFar(NamedTuple):
    """What a run has ended and said when something is hit, and the hosts that it calls lost or silent by then."""

    outcomes: int
    lines: int
    noted: Mapping[str, Mapping[str, Any]]


@dataclass
class Soak:
    """The state of the whole experiment, run after run."""

    lab: Lab
    run_folder: Path
    launcher: launchers.Launcher
    strikes: Strikes
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
            time.sleep(self.strikes.chance.uniform(0.0, 2.0))
            if self.is_running():
                self.strike()
        self.end()

    def begin(self) -> None:
        self.strikes.repair()
        run = self.run_folder
        is_begun = (run / "plan.jsonl").exists()
        what = ["--resume", str(run)] if is_begun else [str(run.with_name("s.yaml")), "--out", str(run)]
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
        while self.is_running() and time.monotonic() < until and self.strikes.launcher_pid() in (0, self.lost_a_host):
            time.sleep(0.2)
        self.lost_a_host = 0

    def strike(self) -> None:
        kind = self.strikes.chance.choices(list(self.weights), list(self.weights.values()))[0]
        before, launcher = self.so_far(), self.strikes.launcher_pid()
        assert self.process
        target, rank, self.is_ending = self.strikes.hit(kind, self.process)
        if not target:
            return
        print(f"{self.faults.total() + 1:4} {kind} {target}", flush=True)
        if verdict := self.judge(before, kind, target, rank):
            ended = self.outcomes()[before.outcomes :]
            new = [(outcome.status, outcome.rank, outcome.host, outcome.reason) for outcome in ended]
            self.fail(verdict, f"{kind} {target}: {[outcome for outcome in new if outcome[0] != 'ok']}")
        if KINDS[kind].costs == THE_HOST:
            self.lost_a_host = launcher
        self.faults[kind] += 1  # one that is interrupted before it was judged counts nowhere

    def judge(self, before: SoFar, kind: str, target: str, rank: int) -> str:
        """What was not as it has to be; empty if all was."""
        costs = KINDS[kind].costs
        if costs == NOT_ASKED:
            return ""
        if costs == TIME:
            return "" if self.go_on(before) else "harm"
        if costs == THE_RUN:
            return "" if self.await_words("free space", before.lines) else "unnamed"
        found = self.await_name(before, kind, target, rank)
        return "" if found == "named" else found

    def go_on(self, before: SoFar) -> bool:
        """Whether the next three cases end well, or all that there are until the run ends for what was hit before."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline:
            new = self.outcomes()[before.outcomes :]
            if len(new) >= 3 or any(outcome.status != "ok" for outcome in new):
                return all(outcome.status == "ok" for outcome in new)
            time.sleep(0.2)
        return False

    def await_words(self, words: str, from_line: int) -> bool:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(0.5)  # its last lines are read by another thread
        return not self.is_running() and any(words in line for line in self.said[from_line:])

    def so_far(self) -> SoFar:
        run = self.run_folder
        environment = RunFolder.open(run).environment() if (run / "plan.jsonl").exists() else {}
        noted = {heading: environment.get(heading, {}) for heading in (LOST_HOSTS, SILENT_HOSTS, HOSTS_WITHOUT_LINK)}
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
            if KINDS[kind].costs == A_CASE and len(new) >= 3:
                return "named"  # it was hit between two cases: nothing was lost
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
            rf"|it is the link of the head's own, {host}\b|passes on no word of the run on hosts? [^;]*\b{host}\b"
        )
        return any(re.search(words, line) for line in self.said[from_line:])

    def notes(self, host: str, before: Mapping[str, Mapping[str, Any]]) -> bool:
        """Where no case has ranks on a host its loss ends none, and stands with the run's environment."""
        now = self.so_far().noted
        return any(host in now[heading] and now[heading][host] != of.get(host) for heading, of in before.items())

    def outcomes(self) -> list[Outcome]:
        run = self.run_folder
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
        run = RunFolder.open(self.run_folder)
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
    "harm": "cases harmed by what costs nothing but time",
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
    for kind in KINDS:
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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterbench-soak-")))
        room = stack.enter_context(disk(folder))
        hosts = [f"cb{index}" for index in range(1, NUM_HOSTS + 1)]
        lab = stack.enter_context(Lab(NUM_HOSTS, environment=clocks(folder, hosts)))
        (room / "s.yaml").write_text(SUITE.format(limit=CASE_LIMIT_S))
        weights = {name: of.weight for name, of in KINDS.items() if any(word in name for word in kind.split(","))}
        strikes = Strikes(lab, folder, random.Random(seed))
        soak = Soak(lab, room / "run", launchers.mpich(lab, hosts, 1), strikes, weights)
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
