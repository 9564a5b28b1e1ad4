import struct

from clusterbench.facts.nvidia_libraries import NAMES

FOLDER = "/usr/lib/x86_64-linux-gnu"
VERSION = "570.86.15"


def elf(least_bytes=4096, machine=62, size_bytes=4096):
    """A file with the header of a shared library whose table of sections ends at ``least_bytes``."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQ", 3, machine, 1, 0, 64, least_bytes - 10 * 64)
    header += struct.pack("<IHHHHHH", 0, 64, 56, 1, 64, 10, 9)
    return header.ljust(size_bytes, b"\0")


def plant(machine):
    for name in NAMES:
        target = name.removesuffix(".1") + f".{VERSION}"
        machine.links[f"{FOLDER}/{name}"] = target
        machine.files[f"{FOLDER}/{target}"] = elf()
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Wed Jan 1 00:00:00 UTC 2025\n"
    machine.files["/proc/driver/nvidia/version"] = version
