"""A tray of an NVL72 rack: four GB200, no NVSwitch of its own, and a domain of two trays for NVLink between hosts."""

import json
from dataclasses import replace

from clusterbench.facts.fabric import BUS, FABRIC_MANAGER, IMEX
from tests.facts.healthy import gpus, nvlinks

NAME = "NVIDIA GB200"
TRAYS = ("10.0.0.1", "10.0.0.2")


def change(machine):
    machine.environment["gpus"] = [gpu | {"name": NAME} for gpu in machine.environment["gpus"][:4]]
    machine.files["/dev/nvidia-caps-imex-channels/channel0"] = ""
    described, links = gpus.facts(), nvlinks.facts()
    machine.give(
        replace(
            described,
            gpus=tuple(replace(gpu, name=NAME) for gpu in described.gpus[:4]),
            on_bus=described.on_bus[:4],
        )
    )
    machine.give(replace(links, gpus=tuple(replace(each, version="5.0") for each in links.gpus[:4]), num_pairs=6))
    machine.without(*(f"{BUS}/0000:{0xC5 + number:02x}:00.0" for number in range(4)))
    machine.programs[FABRIC_MANAGER] = "LoadState=not-found\nActiveState=inactive\nSubState=dead\n"
    connections = {str(number): {"host": tray, "status": "CONNECTED"} for number, tray in enumerate(TRAYS)}
    nodes = {
        str(number): {"status": "READY", "host": tray, "hostName": f"tray{number}", "connections": connections}
        for number, tray in enumerate(TRAYS)
    }
    machine.programs[IMEX] = json.dumps({"nodes": nodes, "status": "UP"})
