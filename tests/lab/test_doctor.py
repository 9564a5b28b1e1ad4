"""The doctor on hosts of their own: under launchers, over ssh, and as Slurm's health check."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from clusterbench import own_copy
from tests.doctor.page_parts import suspects
from tests.doctor.test_health_check import script
from tests.facts.machine import healthy
from tests.lab import launchers
from tests.lab import slurm as slurm_of_a_lab
from tests.lab.hosts import LOGIN
from tests.lab.slurm import Slurm
from tests.lab.test_slow_hosts import HOSTS, evidence, part_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

DOCTOR = ["-m", "clusterbench", "doctor"]
STATE = "class/infiniband/mlx5_3/ports/1/state"


@pytest.fixture
def plant(lab, tmp_path):
    """Gives a host the RDMA cards of a healthy one, as a folder in which a test may break them; taken away again."""
    planted = []

    def on(host):
        root = tmp_path / host
        healthy().write(root)
        shutil.rmtree(root / "sys/devices")
        shutil.rmtree(root / "sys/class/net")
        (root / "sys/class/net").mkdir()
        shown = lab.run(host, ["sh", "-c", "cd /sys/class/net; for name in *; do readlink $name; done"], check=True)
        for link in shown.stdout.split():  # MPI's libraries look for interfaces there
            (root / "sys/class/net" / Path(link).name).symlink_to(link)
        lab.run(host, ["mount", "--bind", str(root / "sys/class"), "/sys/class"], check=True)
        planted.append(host)
        return root / "sys"

    yield on
    for host in planted:
        lab.run(host, ["umount", "/sys/class"])


def down(planted):
    (planted / STATE).write_text("1: DOWN\n")


def doctor(lab, *words, timeout=120):
    return lab.run(LOGIN, [sys.executable, *DOCTOR, *words], timeout=timeout)


def health_check(folder):
    """The script of docs/doctor.md, as it stands there but for where the doctor is."""
    program = folder / "health.sh"
    # The lab's hosts may lock as little memory as the machine that it runs on.
    text = script().replace("port_state,rdma_driver,memlock", "port_state")
    program.write_text(text.replace("clusterbench doctor", shlex.join(own_copy.command("clusterbench", "doctor"))))
    program.chmod(0o755)
    return program


@pytest.mark.mpi
def test_a_port_that_is_down_on_one_host_of_four_is_named_under_mpirun(lab, plant, tmp_path):
    if reason := launchers.why_not_mpich():
        pytest.skip(reason)
    for host in ("cb1", "cb2", "cb3", "cb4"):
        planted = plant(host)
    down(planted)
    launcher = launchers.mpich(lab, ["cb1", "cb2", "cb3", "cb4"], ranks_per_host=1)
    command = launcher.command(*DOCTOR, "--quick", "--page", str(tmp_path / "cluster.html"))
    done = lab.run(LOGIN, command, env=launcher.environment, timeout=200)
    assert "\ncb4\n  error    mlx5_3 port 1 (0000:4b:00.0): is DOWN" in done.stdout, done.stderr
    found = {host: what for host, _, what in suspects((tmp_path / "cluster.html").read_text())}
    assert "mlx5_3 port 1 (0000:4b:00.0): is DOWN" in found["cb4"]


@pytest.mark.in_turn
@pytest.mark.matrix
@pytest.mark.parametrize("name", [pytest.param("openmpi", marks=pytest.mark.mpi), "srun", "torchrun"])
def test_other_launchers_bring_it_to_all_hosts_as_well(lab, plant, request, name):
    if reason := getattr(launchers, f"why_not_{name}", lambda: None)():
        pytest.skip(reason)
    if name == "srun":
        request.getfixturevalue("slurm")
    for host in HOSTS[:2]:
        planted = plant(host)
    down(planted)
    launcher = getattr(launchers, name)(lab, HOSTS[:2], 1)
    done = lab.run(LOGIN, launcher.command(*DOCTOR, "--quick"), env=launcher.environment, timeout=200)
    assert " of 2 hosts" in done.stdout.splitlines()[0], done.stderr
    assert "mlx5_3 port 1 (0000:4b:00.0): is DOWN" in done.stdout.partition("\ncb2\n")[2]


@pytest.mark.in_turn
def test_inside_a_launcher_hosts_are_chosen_of_its_own(lab, tmp_path):
    launcher, said = launchers.torchrun(lab, HOSTS[:3], 1), tmp_path / "found.json"
    command = launcher.command(*DOCTOR, "--quick", "--hosts", "cb1,cb3", "--json", str(said))
    done = lab.run(LOGIN, command, env=launcher.environment, timeout=200)
    assert said.exists(), done.stderr
    assert json.loads(said.read_text())["hosts"] == ["cb1", "cb3"]


@pytest.mark.in_turn
@pytest.mark.mpi
def test_a_launcher_that_the_doctor_starts_examines_the_hosts_that_answer(lab):
    if reason := launchers.why_not_mpich():
        pytest.skip(reason)
    lab.crash("cb3", power=True)
    launcher = launchers.mpich(lab, ["cb1", "cb2", "cb3"], ranks_per_host=1)
    done = lab.run(
        LOGIN,
        [sys.executable, *DOCTOR, "--quick", "--launch", shlex.join(launcher.prefix)],
        env=launcher.environment,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr
    assert " of 3 hosts" in done.stdout.splitlines()[0], done.stdout
    assert "\ncb3\n  error    was not reached [not_reached]\n" in done.stdout
    assert "mpirun starts no process there" in done.stdout


def test_over_ssh_every_host_answers_and_the_one_that_is_off_is_named(lab, plant):
    down(plant("cb2"))
    lab.crash("cb3", power=True)
    done = doctor(lab, "--quick", "--hosts", "cb1,cb2,cb3")
    assert done.returncode == 1, done.stderr
    assert "\ncb3\n  error    was not reached [not_reached]" in done.stdout
    assert "  error    mlx5_3 port 1 (0000:4b:00.0): is DOWN" in done.stdout.partition("\ncb2\n")[2]


@pytest.mark.in_turn
def test_slurms_own_health_check_drains_a_node_and_returns_it(lab, plant, tmp_path):
    if reason := slurm_of_a_lab.why_not():
        pytest.skip(reason)
    planted = plant("cb2")
    with Slurm(lab, health_check(tmp_path)) as slurm:  # idle at its start, though the program ran
        down(planted)
        slurm.wait_for("cb2", "drained")
        shown = lab.run(LOGIN, ["scontrol", "show", "node", "cb2"]).stdout
        assert "Reason=clusterbench: mlx5_3 port 1 (0000:4b:00.0): is DOWN" in shown
        assert slurm.states()["cb1"].rstrip("*") == "idle"
        (planted / STATE).write_text("4: ACTIVE\n")
        slurm.wait_for("cb2", "idle")


def test_a_node_that_someone_else_drained_stays_drained(lab, slurm, tmp_path):
    program = health_check(tmp_path)
    lab.run(LOGIN, ["scontrol", "update", "nodename=cb1", "state=drain", "reason=memory is replaced"], check=True)
    assert lab.run("cb1", ["sh", str(program)], timeout=60).returncode == 0
    assert slurm.states()["cb1"] == "drained"


@pytest.mark.in_turn
@pytest.mark.alone
def test_the_short_probes_name_the_host_whose_link_is_shaped(lab, tmp_path):
    lab.shape("cb3", "200mbit")
    launcher = launchers.by_hand(["cb1", "cb2", "cb3", "cb4"])
    command = launcher.command("-m", "clusterbench.cli", "doctor", "--out", str(tmp_path / "out"))
    done = lab.run(LOGIN, command, env=launcher.environment, timeout=200)
    found = done.stdout.partition("\ncb3\n")[2].partition("\n\n")[0]
    assert "[slow_link]" in found, done.stdout + done.stderr


def test_a_port_that_is_down_is_named_by_a_run_of_acceptance(lab, plant, tmp_path):
    for host in HOSTS:
        planted = plant(host)
    down(planted)
    part = part_of("suites/acceptance.yaml", tmp_path, {"matmul": {"sizes": [64], "iterations": 3}})
    against = evidence(lab, part, tmp_path / "out")
    hosts = json.loads((tmp_path / "out" / "hosts.json").read_text())["hosts"]
    said = {name: " ".join(each["sentence"] for each in hosts[name]["evidence"]) for name in against}
    assert {name for name in said if "mlx5_3 port 1: is DOWN" in said[name]} == {"cb4"}
