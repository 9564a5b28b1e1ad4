"""One host of four has a slow disk, link or processor: what acceptance and the doctor measure names it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from threading import Event, Thread

import pytest
import yaml

from tests.lab import launchers
from tests.lab.hosts import LOGIN

pytestmark = [pytest.mark.lab, pytest.mark.alone, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HOSTS = ["cb1", "cb2", "cb3", "cb4"]


def part_of(suite, folder, options):
    """A suite of the project with these of its benchmarks only, and these options: the lab's machine has two cores."""
    whole = yaml.safe_load((ROOT / suite).read_text())
    kept = [{"benchmark": name} for name in options if any(each["benchmark"] == name for each in whole["benchmarks"])]
    assert len(kept) == len(options), f"{suite} has not all of {list(options)}"
    of_cpu = {name: {**whole["cpu"].get(name, {}), **said} for name, said in options.items()}
    path = folder / "part.yaml"
    path.write_text(
        yaml.safe_dump({"suite": "part", "question": "Which host is slow?", "benchmarks": kept, "cpu": of_cpu})
    )
    return path


def evidence(lab, suite, out):
    """Kinds of what speaks against each host, by one rank a host."""
    launcher = launchers.by_hand(HOSTS)
    command = launcher.command("-m", "clusterbench.cli", "run", str(suite), "--out", str(out))
    done = lab.run(LOGIN, command, env=launcher.environment, timeout=200)
    assert (out / "hosts.json").exists(), done.stderr
    hosts = json.loads((out / "hosts.json").read_text())["hosts"]
    return {name: {each["kind"] for each in host["evidence"]} for name, host in hosts.items()}


def named(against, kind):
    return {host for host, kinds in against.items() if kind in kinds}


SUITES = ["suites/acceptance.yaml", "clusterbench/doctor/deep.yaml"]


@pytest.mark.parametrize("suite", SUITES)
def test_acceptance_and_the_deep_doctor_measure_what_shows_a_slow_disk_link_and_processor(suite, tmp_path):
    assert part_of(suite, tmp_path, {"file_io": {}, "link_matrix": {}, "matmul": {}}).exists()


@pytest.mark.matrix
@pytest.mark.parametrize("suite", SUITES)
def test_a_disk_that_is_slow_is_named_by_the_files_of_acceptance_and_of_the_deep_doctor(lab, tmp_path, suite):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which makes the slow disk")
    library = tmp_path / "slow_disk.so"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    for name, value in (("LD_PRELOAD", library), ("SLOW_DISK_HOST", "cb3"), ("SLOW_DISK_S", 2.0)):
        lab.setenv(name, str(value))
    files = {"size": "1MiB", "iterations": 3, "operations": ["write"]}
    part = part_of(suite, tmp_path, {"file_io": files})
    assert named(evidence(lab, part, tmp_path / "out"), "slow_disk") == {"cb3"}


@pytest.mark.in_turn
def test_a_host_whose_link_is_shaped_is_named_by_the_acceptances_pairs(lab, tmp_path):
    lab.shape("cb2", "100mbit")
    part = part_of("suites/acceptance.yaml", tmp_path, {"link_matrix": {"between": "rails"}})
    assert named(evidence(lab, part, tmp_path / "out"), "slow_link") == {"cb2"}


@contextmanager
def held_back(rank: int, folder: Path) -> Iterator[None]:
    """The worker of a rank runs a fiftieth of the time, as under a quota of the kernel's.

    Four ranks share two cores here: less would not show beside what they take from each other.
    """
    over = Event()

    def hold() -> None:
        while not over.is_set():
            found = workers_of(rank, folder)
            for number, seconds in ((SIGSTOP, 0.098), (SIGCONT, 0.002)):
                for pid in found:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(seconds)

    holding = Thread(target=hold, daemon=True)
    holding.start()
    try:
        yield
    finally:
        over.set()
        holding.join()


def workers_of(rank: int, folder: Path) -> list[int]:
    """Processes whose output is the log of this rank."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                log = os.readlink(entry / "fd/1")
                if log.startswith(f"{folder}/") and log.endswith(f"-rank-{rank:04d}.log"):
                    found.append(int(entry.name))
    return found


@pytest.mark.in_turn
def test_a_host_whose_processor_is_held_back_is_named_by_the_acceptances_products(lab, tmp_path):
    part = part_of("suites/acceptance.yaml", tmp_path, {"matmul": {"sizes": [1024], "iterations": 20}})
    seen = set()
    for number in range(
        3
    ):  # beside other work ranks may differ so much that nobody is judged; nobody else is ever named
        with held_back(2, tmp_path):
            seen = named(evidence(lab, part, tmp_path / f"out{number}"), "straggler")
        assert seen <= {"cb3"}
        if seen:
            break
    assert seen == {"cb3"}
