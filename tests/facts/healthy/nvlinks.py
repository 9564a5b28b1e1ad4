"""Eighteen links of each of eight H100, all up; every pair may read each other."""

from clusterbench.facts.nvlinks import GpuLinks, Nvlinks
from tests.facts.healthy.described import NUM_GPUS


def links(index, down=()):
    up = tuple(number for number in range(18) if number not in down)
    return GpuLinks(index, up=up, down=tuple(down), version="4.0", error=None)


def facts(**changed):
    described = {"gpus": tuple(links(index) for index in range(NUM_GPUS)), "num_pairs": 28, "refused": ()}
    return Nvlinks(**{**described, **changed})


def plant(machine):
    machine.give(facts())
