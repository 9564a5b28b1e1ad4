"""One host of four has a slow disk: the acceptance's measurement of files names it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

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
    launcher = launchers.torchrun(lab, HOSTS, 1)
    command = launcher.command("-m", "clusterbench.cli", "run", str(suite), "--out", str(out))
    done = lab.run(LOGIN, command, env=launcher.environment, timeout=200)
    assert (out / "hosts.json").exists(), done.stderr
    hosts = json.loads((out / "hosts.json").read_text())["hosts"]
    return {name: {each["kind"] for each in host["evidence"]} for name, host in hosts.items()}


def named(against, kind):
    return {host for host, kinds in against.items() if kind in kinds}


@pytest.mark.parametrize("suite", ["suites/acceptance.yaml", "clusterbench/doctor/deep.yaml"])
def test_acceptance_and_the_deep_doctor_measure_what_shows_a_slow_disk_link_and_processor(suite, tmp_path):
    assert part_of(suite, tmp_path, {"file_io": {}, "link_matrix": {}, "matmul": {}}).exists()


def test_a_disk_that_is_slow_is_named_by_the_acceptances_files(lab, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which makes the slow disk")
    library = tmp_path / "slow_disk.so"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    for name, value in (("LD_PRELOAD", library), ("SLOW_DISK_HOST", "cb3"), ("SLOW_DISK_S", 2.0)):
        lab.setenv(name, str(value))
    files = {"size": "1MiB", "iterations": 3, "operations": ["write"]}
    part = part_of("suites/acceptance.yaml", tmp_path, {"file_io": files})
    assert named(evidence(lab, part, tmp_path / "out"), "slow_disk") == {"cb3"}
