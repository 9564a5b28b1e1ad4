"""Hosts whose GPUs are the healthy ones but for what a test changes."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.facts.virtualization import Virtualization
from tests.facts.healthy.gpus import facts
from tests.facts.machine import training

PLACE = "GPU 3 (0000:4b:01.0, serial 1650000000003)"


def virtualization(machine="none", container="none"):
    return Virtualization(machine=machine, container=container, maker=None, product=None)


def host(*others, number=3, unread=None, **changed):
    """A healthy host of which one GPU differs; with ``unread``, why functions of NVML said nothing."""
    gpus = list(facts().gpus)
    gpus[number] = replace(gpus[number], **changed)
    return training(facts(gpus=tuple(gpus), unread=unread or {}), *others)


def only(check, *others, **changed):
    """The one fault of a host of which GPU 3 differs; all others must be in order."""
    said = check.judge(host(*others, **changed))
    (fault,) = said.faults
    assert said.healthy.startswith("7 NVIDIA GPUs")
    assert fault.where == PLACE
    return fault
