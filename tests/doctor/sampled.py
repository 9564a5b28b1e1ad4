"""A host of eight A100 and eight ConnectX-6 whose files are made of what programs printed on real ones.

``lspci -vvv``, ``ibstat`` and ``ibv_devinfo`` are of one machine, a virtual one of Azure (ND A100 v4); ``nvidia-smi -q
-x``, ``nvidia-smi nvlink -s`` and the kernel's log are of others with the same GPUs. A fault is planted as words of
these texts, so that it comes to the checks by way of the collectors. What no sample tells, such as limits and kernel
settings, is the healthy host's of ``tests/facts/healthy``. Nothing of the samples is part of this project.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from clusterbench.facts.gpus import CLOCK, FABRIC, FABRIC_OLD, MEMORY, RECOVERY, VOLATILE, BusGpu, Gpu, Gpus
from clusterbench.facts.nvlinks import GpuLinks, Nvlinks
from clusterbench.tools import nvidia_nvlink, nvidia_smi_q
from tests.facts.healthy.infiniband import COUNTERS, HW_COUNTERS
from tests.facts.healthy.pcie import config, errors
from tests.facts.machine import Machine, healthy, planted

SAMPLES = Path(__file__).parents[3] / "shared" / "samples"
BUS = "/sys/bus/pci/devices"
RDMA = "/sys/class/infiniband"
_CLASSES = {"3D controller": "0x030200", "Bridge": "0x068000", "Infiniband controller": "0x020700"}
_VENDORS = {"NVIDIA": "0x10de", "Mellanox": "0x15b3"}
_NOT_PRINTED = (CLOCK, FABRIC, FABRIC_OLD, MEMORY, RECOVERY, VOLATILE)
_VIRTUAL_CONNECTX6 = "0x101c"  # lspci prints the name in place of the number


@dataclass(frozen=True)
class Texts:
    """What each program printed on a host; empty where it was not run."""

    lspci: str
    ibstat: str
    ibv_devinfo: str
    nvidia_smi: str
    nvlink: str
    dmesg: str = ""

    def saying(self, program: str, after: str, old: str, new: str) -> Texts:
        """With other words for the first ``old`` behind ``after`` in what a program printed.

        Raises
        ------
        ValueError
            If the text does not hold them.
        """
        text = getattr(self, program)
        place = text.index(old, text.index(after))
        return replace(self, **{program: text[:place] + new + text[place + len(old) :]})


def recorded() -> Texts:
    """Of a healthy host."""
    lspci = _sample("lspci_vvv_full_azure_ndmv4_a100.txt")
    return Texts(
        lspci=lspci,
        ibstat=_sample("ib_device_status_azure_ndmv4_a100.json"),
        ibv_devinfo=_sample("ib_device_info_azure_ndmv4_a100.json"),
        nvidia_smi=_eight_gpus(re.findall(r"^(\S+) 3D controller", lspci, re.MULTILINE)),
        nvlink=_sample("nvidia_smi_nvlink_status_a100.txt"),
    )


def xid(address: str) -> str:
    """What a kernel says of a GPU whose firmware does not answer."""
    return _sample("dmesg_xid119.txt").replace("PCI:0000:9b:00", f"PCI:{address.removesuffix('.0')}")


def machine(texts: Texts) -> Machine:
    """The host as files, where lspci, ibstat, ibv_devinfo and nvidia-smi would print this."""
    made = healthy().without(RDMA, BUS, "/sys/devices/pci", "/sys/class/infiniband_verbs", "ibv_devinfo", "gpus")
    made = made.without("nvlinks", "/sys/kernel/iommu_groups", "/dev/infiniband/uverbs")
    devices = dict(_devices(texts.lspci))
    gpus = [address for address, said in devices.items() if said["class"] == "0x030200"]
    cards = [address for address, said in devices.items() if said["class"] == "0x020700"]
    for group, (address, said) in enumerate(devices.items()):
        folder = f"/sys/devices/pci{address.rpartition(':')[0]}/{address}"
        made.files |= planted(folder, {name: value for name, value in said.items() if name not in ("driver", "config")})
        made.files[f"{folder}/config"] = said["config"]
        made.links[f"{folder}/driver"] = f"../../../bus/pci/drivers/{said['driver']}"
        made.links[f"{folder}/iommu_group"] = f"../../../kernel/iommu_groups/{group}"
        made.files[f"/sys/kernel/iommu_groups/{group}/type"] = "identity\n"
        made.links[f"{BUS}/{address}"] = f"../../..{folder.removeprefix('/sys')}"
    _add_ports(made, cards, json.loads(texts.ibstat), json.loads(texts.ibv_devinfo))
    _add_gpus(made, texts, gpus)
    if texts.dmesg:
        rows = [line.partition("] ")[2] for line in texts.dmesg.splitlines()]
        made.files["/dev/kmsg"] += "".join(f"3,{990 + row},99000000,-;{said}\n" for row, said in enumerate(rows))
    made.programs["systemd-detect-virt --vm"] = "microsoft\n"
    made.programs["nvidia-smi -L"] = "\n".join(re.findall(r"^GPU \d.*", texts.nvlink, re.MULTILINE)) + "\n"
    made.environment |= {
        "gpus": [{"index": each.index, "name": each.name} for each in made.given["gpus"].gpus],
        "pcie": [_card(address, devices[address], cards) for address in (*gpus, *cards)],
        "numa_nodes": [{"node": node, "cpus": f"{24 * node}-{24 * node + 23}"} for node in range(4)],
        "num_usable_cpus": 96,
        "num_logical_cpus": 96,
    }
    return made


def _sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def _eight_gpus(addresses: list[str]) -> str:
    """The one GPU of the sample as eight, without its slices, and with the rows that a sliced GPU does not tell."""
    head, gpu, rest = re.split(r"(?s)(?=    <gpu id=)|(?<=</gpu>\n)", _sample("nvidia_smi_q_x_a100_sxm4_v12.xml"))
    rows = re.search(r"(?s)<remapped_rows>.*?</remapped_rows>", _sample("nvidia_smi_q_x_a10g.xml"))
    assert rows is not None
    gpu = re.sub(r"(?s)<mig_devices>.*?</mig_devices>", "<mig_devices>None</mig_devices>", gpu)
    gpu = re.sub(r"(_mig>|<persistence_mode>)(?:Enabled|Disabled)<", _whole, gpu)
    gpu = gpu.replace("<remapped_rows>N/A</remapped_rows>", rows[0])
    own = re.search(r'<gpu id="(\S+)">', gpu)
    assert own is not None
    head = head.replace("<attached_gpus>4<", f"<attached_gpus>{len(addresses)}<")
    named = [gpu.replace(own[1], f"0000{address}") for address in addresses]
    eight = (re.sub(r"(?<=<serial>)(\d+)\d", rf"\g<1>{number}", each) for number, each in enumerate(named))
    return head + "".join(eight) + rest


def _whole(word: re.Match[str]) -> str:
    return f"{word[1]}{'Enabled' if 'persistence' in word[1] else 'Disabled'}<"


def _devices(lspci: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Files of each GPU, NVSwitch and network card by its address."""
    for block in re.split(r"^(?=[0-9a-f]{4}:)", lspci, flags=re.MULTILINE):
        head = re.match(r"(\S+) ([^:]+): (\w+)(?:.* Device ([0-9a-f]{4})\b)?", block)
        if head is None or head[2] not in _CLASSES:
            continue
        able, now = (re.search(rf"\t{name}:.*Speed (\S+),? Width x(\d+)", block) for name in ("LnkCap", "LnkSta"))
        assert able is not None
        assert now is not None
        said = {
            "class": _CLASSES[head[2]],
            "vendor": _VENDORS[head[3]],
            "device": f"0x{head[4]}" if head[4] else _VIRTUAL_CONNECTX6,
            "numa_node": _after("NUMA node: ", block),
            "max_link_speed": f"{able[1].removesuffix('GT/s')}.0 GT/s PCIe",
            "max_link_width": able[2],
            "current_link_speed": "Unknown" if "unknown" in now[1] else f"{now[1].removesuffix('GT/s')}.0 GT/s PCIe",
            "current_link_width": now[2],
            "config": config(relaxed_ordering="RlxdOrd+" in block),
            "driver": _after("Kernel driver in use: ", block) or "none",
        }
        yield head[1], said | (errors() if "Advanced Error Reporting" in block else {})


def _after(words: str, block: str) -> str:
    found = re.search(rf"{words}(\S+)", block)
    return found[1] if found else ""


def _card(address: str, said: Mapping[str, Any], cards: list[str]) -> dict[str, Any]:
    """As environment.json lists it; a virtual machine shows no bridge above it."""
    is_network = address in cards
    return {
        "address": address,
        "kind": "network" if is_network else "display",
        "id": f"{said['vendor'][2:]}:{said['device'][2:]}",
        "names": [f"mlx5_ib{cards.index(address)}"] if is_network else [],
        "numa_node": int(said["numa_node"]),
        "path": [],
    }


_STATES = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT"}
_PHYSICAL = {"LinkUp": "5: LinkUp", "Polling": "2: Polling", "Disabled": "3: Disabled"}


def _add_ports(made: Machine, cards: list[str], ibstat: Mapping[str, Any], devinfo: Mapping[str, Any]) -> None:
    printed = []
    for number, (address, (name, said)) in enumerate(zip(cards, ibstat.items(), strict=True)):
        device = name.split("'")[1]
        verbs = devinfo[f"hca_id:\t{device}"]
        (one,) = (block["port:\t1"] for block in verbs.values() if isinstance(block, dict) and "port:\t1" in block)
        port = said["Port 1:"]
        own = {"node_type": "1: CA", "fw_ver": said["Firmware version"], "hca_type": said["CA type"]}
        made.files |= planted(f"{RDMA}/{device}", own | {"board_id": verbs["board_id"]})
        made.links[f"{RDMA}/{device}/device"] = f"../../../devices/pci{address.rpartition(':')[0]}/{address}"
        of_port = {
            "state": _STATES[port["State"]],
            "phys_state": _PHYSICAL[port["Physical state"]],
            "rate": f"{port['Rate']} Gb/sec (4X HDR)",
            "link_layer": port["Link layer"],
            "lid": f"0x{int(port['Base lid']):x}",
            "sm_lid": f"0x{int(port['SM lid']):x}",
            "gids/0": one["GID[  0]"],
            "gid_attrs/types/0": "IB/RoCE v1",
        }
        folder = f"{RDMA}/{device}/ports/1"
        made.files |= planted(folder, of_port)
        sent = {"port_xmit_packets": 315_487_941_081, "port_rcv_packets": 315_487_941_081}
        made.files |= planted(f"{folder}/counters", dict.fromkeys(COUNTERS, 0) | sent)
        made.files |= planted(f"{folder}/hw_counters", dict.fromkeys(HW_COUNTERS, 0))
        made.files[f"/sys/devices/pci{address.rpartition(':')[0]}/{address}/infiniband/{device}/node_type"] = "1: CA\n"
        made.files[f"/sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"{device}\n"
        made.files[f"/dev/infiniband/uverbs{number}"] = ""
        printed += [f"hca_id:\t{device}", "\t\tport:\t1", f"\t\t\tactive_mtu:\t\t{one['active_mtu']}"]
    made.programs["ibv_devinfo"] = "\n".join(printed) + "\n"


def _add_gpus(made: Machine, texts: Texts, on_bus: list[str]) -> None:
    """As NVML says what ``nvidia-smi`` prints of it; what it does not print of a GPU the board lacks here."""
    query = nvidia_smi_q.parse(texts.nvidia_smi)
    same = {field.name for field in fields(Gpu)} & {field.name for field in fields(nvidia_smi_q.SmiGpu)}
    gpus = []
    for index, gpu in enumerate(query.gpus):
        said = {name: getattr(gpu, name) for name in same if not name.startswith("fabric_")}
        gpus.append(Gpu(index, lacks=_NOT_PRINTED, processes=(), **said))
    shown = tuple(BusGpu(address, "nvidia", True) for address in on_bus)
    made.give(Gpus(gpus=tuple(gpus), driver_version=query.driver_version, on_bus=shown))
    links = [
        GpuLinks(
            each.gpu,
            up=tuple(link for link, rate in each.bytes_per_s.items() if rate),
            down=tuple(each.inactive),
            version="3.0",
            error=None,
        )
        for each in nvidia_nvlink.parse(texts.nvlink)
    ]
    made.give(Nvlinks(gpus=tuple(links), num_pairs=28, refused=()))
