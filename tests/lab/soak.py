"""Random faults at random moments: ``python -m tests.lab.soak [NUMBER [SEED [KIND]]]`` prints what came of each.

KIND limits them to those whose name has it, such as ``agent``.

One suite of many short cases runs under ``--launch`` on four hosts; workers, agents, hosts, links and the launcher are
hit while it does. Counted are finished cases that are not on disk, processes left behind, culprits not named, and cases
or runs that went on beyond their deadlines. All four have to be 0.
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
from dataclasses import dataclass, field
from pathlib import Path

from clusterbench.run_folder import RunFolder
from clusterbench.types import Outcome
from tests.lab import launchers
from tests.lab.hosts import Lab

CASE_LIMIT_S = 8
NUM_HOSTS = 4
SUITE = """
suite: soak
num_nodes: [2]
repeats: 1000
benchmarks:
  - {{benchmark: fault_drill, sleep_s: [0.03, 0.04, 0.05], iterations: 10, warmup: 1, time_limit_s: {limit}}}
  - {{benchmark: all_reduce, min_size: 1KiB, max_size: 1KiB, iterations: 50, time_limit_s: {limit}}}
"""
LONGEST_WAIT_S = 150
"""From a fault to the next sign of progress: 20 s of an agent's silence, 20 of probing, and a new start under load."""

WEIGHTS = {
    "kill worker": 30,
    "segfault worker": 20,
    "stop worker": 15,
    "kill agent": 6,
    "stop agent": 3,
    "crash host": 5,
    "cut link": 3,
    "blink link": 6,
    "kill launcher": 6,
    "terminate run": 6,
}


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

    def run(self, number: int) -> None:
        while sum(self.faults.values()) < number:
            self.begin()
            while self.is_running() and sum(self.faults.values()) < number:
                if not self.wait_for_progress():
                    break
                time.sleep(self.chance.uniform(0.0, 2.0))
                if self.is_running():
                    self.strike()
            self.end()
        self.check_disk()

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
        self.said = []
        self.process = self.lab.login(words, env=self.launcher.environment, stderr=subprocess.PIPE, text=True)
        self.last_progress = time.monotonic()
        threading.Thread(target=self.listen, args=(self.process,), daemon=True).start()

    def listen(self, process: "subprocess.Popen[str]") -> None:
        begun: str = ""
        for line in process.stderr or ():
            self.said.append(line)
            if match := re.match(r"\[\d+/\d+\] (\S+/\S+)", line):
                begun = match[1]
            elif re.match(r"\[\d+/\d+\] ok", line):
                self.finished.add((begun, len(self.finished)))
                self.last_progress = time.monotonic()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_for_progress(self) -> bool:
        since = time.monotonic()
        while self.is_running() and self.last_progress < since:
            if time.monotonic() - since > LONGEST_WAIT_S:
                self.fail("hang", f"no progress for {LONGEST_WAIT_S} s")
                return False
            time.sleep(0.05)
        return self.is_running()

    def strike(self) -> None:
        kind = self.chance.choices(list(self.weights), list(self.weights.values()))[0]
        before = len(self.outcomes())
        target, rank = self.hit(kind)
        if not target:
            return
        self.faults[kind] += 1
        print(f"{sum(self.faults.values()):4} {kind} {target}", flush=True)
        if kind in ("blink link", "kill launcher", "terminate run"):
            return  # the first has no culprit; the others are what a person does, who knows
        if self.await_name(before, kind, target, rank):
            return
        new = [(outcome.status, outcome.rank, outcome.host, outcome.reason) for outcome in self.outcomes()[before:]]
        self.fail("unnamed", f"{kind} {target}: {[outcome for outcome in new if outcome[0] != 'ok']}")

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
            number = "-KILL" if kind == "kill agent" else "-STOP"
            self.lab.run(host, ["kill", number, self.agents(host)[0]])
        return host, -1

    def await_name(self, before: int, kind: str, target: str, rank: int) -> bool:
        """Whether an outcome that names the culprit comes in time. A worker that had already finished harms nobody."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline:
            new = self.outcomes()[before:]
            for outcome in new:
                if rank >= 0 and outcome.status in ("failed", "timeout") and outcome.rank == rank:
                    return True
                if rank < 0 and (target in outcome.lost_hosts or outcome.host == target):
                    return True
            if rank >= 0 and [outcome.status for outcome in new].count("ok") >= 3:
                return True  # it died between two cases: nothing was lost
            if rank < 0 and self.names_in_words(target):
                return True
            if not self.is_running() and time.monotonic() > deadline - LONGEST_WAIT_S + 5:
                return False
            time.sleep(0.2)
        return False

    def names_in_words(self, host: str) -> bool:
        """Between two cases a loss belongs to none of them; then what the supervisor says names the host."""
        return any(re.search(rf"(no answer from|it said:|lost:) [^;]*\b{host}\b", line) for line in self.said)

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

    def signal_launcher(self, number: int) -> bool:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words and Path(words[0].decode()).name == "mpirun" and str(self.folder).encode() in b" ".join(words):
                    os.kill(int(entry.name), number)
                    return True
        return False

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
            if outcome.elapsed_s > CASE_LIMIT_S + 25:
                self.fail("hang", f"{outcome.case} took {outcome.elapsed_s:.0f} s of {CASE_LIMIT_S}")
        if run.problems:
            self.fail("lost", "; ".join(run.problems))

    def fail(self, kind: str, what: str) -> None:
        self.failures[kind] += 1
        print(f"     {kind.upper()}: {what}\n{''.join(self.said[-12:])}", flush=True)


def main() -> int:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    kind = sys.argv[3] if len(sys.argv) > 3 else ""
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clusterbench-soak-") as name, Lab(NUM_HOSTS) as lab:
        folder = Path(name)
        (folder / "s.yaml").write_text(SUITE.format(limit=CASE_LIMIT_S))
        weights = {name: weight for name, weight in WEIGHTS.items() if kind in name}
        soak = Soak(lab, folder, launchers.mpich(lab, list(lab.hosts), 1), random.Random(seed), weights)
        soak.run(number)
        outcomes = Counter(outcome.status for outcome in soak.outcomes())
    print(f"{sum(soak.faults.values())} faults (seed {seed}) in {(time.monotonic() - start_s) / 60:.0f} min:", end=" ")
    print(", ".join(f"{count} {kind}" for kind, count in soak.faults.most_common()))
    print(f"outcomes: {dict(outcomes)}; {len(soak.finished)} cases were said to be finished")
    for kind, words in {
        "lost": "finished cases lost",
        "orphan": "orphans",
        "unnamed": "unnamed culprits",
        "hang": "hangs beyond a deadline",
    }.items():
        print(f"{soak.failures[kind]} {words}")
    return bool(soak.failures)


if __name__ == "__main__":
    sys.exit(main())
