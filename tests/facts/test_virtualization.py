from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.virtualization import Virtualization
from tests.facts.healthy import virtualization
from tests.facts.machine import Machine


def read(folder, machine):
    machine.write(folder)
    return Virtualization.read(Files(folder, machine.run))


def test_exit_code_1_with_none_is_an_answer(tmp_path):
    machine = Machine()
    virtualization.plant(machine)
    facts = read(tmp_path, machine)
    assert (facts.machine, facts.container, facts.is_virtual) == ("none", "none", False)
    assert (facts.maker, facts.product, facts.unread) == ("Supermicro", "SYS-821GE", {})


def test_a_guest_and_a_container_are_named(tmp_path):
    programs = {"systemd-detect-virt --vm": "kvm\n", "systemd-detect-virt --container": "docker\n"}
    facts = read(tmp_path, Machine(programs=programs))
    assert (facts.machine, facts.container, facts.is_virtual) == ("kvm", "docker", True)


def test_without_the_program_the_cpu_and_files_say_it(tmp_path):
    files = {"/proc/cpuinfo": "flags\t\t: fpu sse2 hypervisor lahf_lm\n", "/.dockerenv": ""}
    facts = read(tmp_path, Machine(files=files))
    assert (facts.machine, facts.container) == ("a hypervisor", "docker")
    assert facts.unread["systemd-detect-virt --vm"] == "systemd-detect-virt is not on PATH"


def test_an_arm_without_the_program_says_nothing(tmp_path):
    facts = read(tmp_path, Machine(files={"/proc/cpuinfo": "Features\t: fp asimd\n"}))
    assert (facts.machine, facts.container, facts.is_virtual) == (None, None, False)
