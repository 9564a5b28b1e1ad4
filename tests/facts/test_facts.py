from __future__ import annotations

import json
import platform
import runpy
import subprocess
import sys

import pytest

from clusterbench.facts import Files, Host, NotKnown, collectors, gather, known
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.limits import UNLIMITED, Limits
from tests.facts.machine import Machine, failed, healthy, hung


def test_this_host_is_described_as_json_without_torch():
    code = "import runpy, sys; runpy.run_module('clusterbench.facts'); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["facts"].keys() == collectors().keys()


def test_one_more_process_of_a_host_says_only_what_the_driver_shows_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["facts", "--gpus"])
    runpy.run_module("clusterbench.facts")
    said = json.loads(capsys.readouterr().out)
    assert {name: list(part) for name, part in said.items()} == {"gpus": [], "facts": ["gpus", "nvlinks"]}


@pytest.mark.parametrize("name", collectors())
def test_a_host_without_files_makes_no_collector_fail(name, tmp_path):
    assert "failed" not in gather(tmp_path, Machine().run)[name]


@pytest.mark.parametrize("name", collectors())
def test_what_a_healthy_host_says_survives_json(name, tmp_path):
    kind = collectors()[name]
    host = healthy().host(tmp_path)
    assert isinstance(host.of(kind), kind)


@pytest.mark.parametrize("name", collectors())
def test_files_that_hold_anything_make_no_collector_fail(name, tmp_path):
    machine = healthy()
    for path in machine.files:
        machine.files[path] = b"\xff\x00 nonsense: {\n"
    for command in machine.programs:
        machine.programs[command] = "nonsense\n\n\t:: \x00"
    machine.write(tmp_path)
    assert "failed" not in gather(tmp_path, machine.run)[name]


def test_why_a_file_was_not_read_is_noted(tmp_path):
    files = Files(tmp_path)
    assert files.text("/proc/absent") is None
    assert files.unread == {"/proc/absent": "is not there"}
    assert files.text("/proc/absent2", optional=True) is None
    assert "/proc/absent2" not in files.unread


def test_settings_of_the_kernel_are_read():
    """The kernel refuses to fill a large buffer from ``/proc/sys``."""
    files = Files()
    assert files.text("/proc/sys/kernel/osrelease") == platform.release()
    assert files.unread == {}


def test_a_file_of_many_pieces_is_read_up_to_four_mebibytes(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * (5 * 2**20))
    assert len(Files(tmp_path).text("/long")) == 4 * 2**20


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "lspci is not on PATH"),
        (hung("lspci -vvv"), "had not ended after 2 s"),
        (failed("lspci -vvv", "pcilib: Cannot open /proc/bus/pci"), "ended with exit code 1: pcilib: Cannot open"),
    ],
)
def test_why_a_program_said_nothing_is_noted(tmp_path, said, why):
    files = Files(tmp_path, Machine(programs={"lspci -vvv": said} if said else {}).run)
    assert files.output("lspci", "-vvv") is None
    assert files.unread["lspci -vvv"].startswith(why)


def test_limits_are_the_soft_ones(tmp_path):
    limits = healthy().host(tmp_path).of(Limits)
    assert (limits.memlock_bytes, limits.open_files, limits.stack_bytes) == (UNLIMITED, 1_048_576, 8 * 2**20)


def test_a_port_has_its_counters_its_addresses_in_use_and_its_card(tmp_path):
    facts = healthy().host(tmp_path).of(Infiniband)
    assert [port.name for port in facts.ports][:2] == ["mlx5_0 port 1", "mlx5_1 port 1"]
    assert facts.ports[3].lid == 0x14
    assert [gid.index for gid in facts.ports[3].gids] == [0]
    assert facts.ports[3].counters["symbol_error"] == 0
    assert (facts.devices[7].address, facts.devices[7].driver) == ("0000:8f:00.0", "mlx5_core")
    assert facts.devices[7].interfaces == ("ibs7",)


def test_facts_of_a_run_before_they_were_recorded_are_not_known():
    with pytest.raises(NotKnown, match="nothing was recorded of limits"):
        Host("n1", {}).of(Limits)


def test_a_value_that_was_not_read_says_why(tmp_path):
    limits = healthy().without("/proc/self/limits").host(tmp_path).of(Limits)
    with pytest.raises(NotKnown, match="/proc/self/limits is not there"):
        known(limits, limits.memlock_bytes, "/proc/self/limits")
