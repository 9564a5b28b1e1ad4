"""Four NVSwitches of an HGX board, and the service that trains them."""

from clusterbench.facts.fabric import BUS, FABRIC_MANAGER
from tests.facts.machine import planted

RUNNING = "LoadState=loaded\nActiveState=active\nSubState=running\n"


def plant(machine):
    machine.programs[FABRIC_MANAGER] = RUNNING
    for number in range(4):
        machine.files |= planted(f"{BUS}/0000:{0xC5 + number:02x}:00.0", {"class": "0x068000", "vendor": "0x10de"})
