"""Machines of two runs, host by host."""

from __future__ import annotations

from typing import Any

from clusterbench.compare.hosts import machine_differences
from clusterbench.run_folder import COPIES
from clusterbench.trend.changed import NOTHING, changes


def machine(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"hosts": hosts}


def differences(base: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return list(machine_differences(base, new))


def test_a_kernel_that_changed_on_the_second_host_alone_is_named() -> None:
    base = machine(n1={"kernel": "6.8"}, n2={"kernel": "6.8"})
    new = machine(n1={"kernel": "6.8"}, n2={"kernel": "6.9"})
    assert differences(base, new) == ["the kernel is 6.9 on n2 and 6.8 on n1 in new and 6.8 in base"]
    assert differences(new, new) == []


def test_hosts_that_swapped_their_drivers_are_a_difference() -> None:
    base = machine(n1={"python": "3.11"}, n2={"python": "3.12"})
    new = machine(n1={"python": "3.12"}, n2={"python": "3.11"})
    assert differences(base, new) == [
        "Python is 3.12 on n1 and 3.11 on n2 in new and 3.11 on n1 and 3.12 on n2 in base"
    ]


def test_more_hosts_of_the_same_kinds_are_no_difference() -> None:
    assert differences(machine(n1={"kernel": "6.8"}), machine(n1={"kernel": "6.8"}, n2={"kernel": "6.8"})) == []


def test_what_workers_loaded_and_variables_are_compared_on_all_hosts() -> None:
    base = {
        **machine(n1={"variables": {}}, n2={"variables": {}}),
        "loaded": {"n1": {"nccl": "2.27"}, "n2": {"nccl": "2.27"}},
    }
    new = {
        **machine(n1={"variables": {}}, n2={"variables": {"NCCL_ALGO": "Ring"}}),
        "loaded": {"n1": {"nccl": "2.28"}, "n2": {"nccl": "2.27"}},
    }
    assert differences(base, new)[0] == "NCCL is 2.28 on n1 and 2.27 on n2 in new and 2.27 in base"


def test_a_host_with_half_the_memory_is_named_and_a_few_bytes_are_not() -> None:
    base = machine(n1={"memory_bytes": 512 * 2**30}, n2={"memory_bytes": 512 * 2**30})
    assert differences(base, machine(n1={"memory_bytes": 511 * 2**30}, n2={"memory_bytes": 513 * 2**30})) == []
    (sentence,) = differences(base, machine(n1={"memory_bytes": 512 * 2**30}, n2={"memory_bytes": 256 * 2**30}))
    assert sentence == "the memory is 256 GiB on n2 and 512 GiB on n1 in new and 512 GiB in base"


def test_settings_that_slow_a_machine_are_named() -> None:
    def set_to(watts: list[float], governor: str) -> dict[str, Any]:
        gpus = [{"power_limit_w": each, "ecc": True, "application_clock_hz": 1.98e9} for each in watts]
        facts = {"gpus": {"gpus": gpus}, "processor": {"governors": {governor: "0-15"}}}
        return machine(n1={"facts": facts})

    base, new = set_to([700.0] * 3, "performance"), set_to([450.0, 700.0, 700.0], "powersave")
    assert differences(base, new) == [
        "the power limit of GPUs is 450 W on 1 and 700 W on 2 in new and 700 W in base",
        "the CPU governor is powersave in new and performance in base",
    ]


def test_machines_without_a_description_cannot_be_compared() -> None:
    assert differences({}, machine(n1={})) == ["environment.json of base names no host, so machines cannot be compared"]


def test_other_sources_of_one_version_are_a_difference() -> None:
    """Years of commits have one version, so nothing that was compared told two programs apart."""
    hosts = {"n1": {"packages": {"clusterbench": "0.1.0"}}}
    base, new = ({"hosts": hosts, COPIES: dict.fromkeys(copies, "0.1.0")} for copies in (["aa"], ["bb", "aa"]))
    assert list(machine_differences(base, new)) == ["the sources of clusterbench are aa and bb in new and aa in base"]
    assert list(machine_differences({"hosts": hosts}, new)) == []
    assert changes(base, new) == ("the sources of clusterbench: aa -> aa and bb",)
    assert changes({"hosts": hosts}, new) == (NOTHING,)
