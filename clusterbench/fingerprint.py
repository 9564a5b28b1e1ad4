"""Which machine a figure is of, in a few named fields: figures of another machine are not used unless that is accepted.

A field is in it where another value is known to change what a healthy machine reaches. Kernel, Python and memory are
not: ``compare`` names them, and they rarely matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from clusterbench.cluster import find_accelerator
from clusterbench.errors import SuiteError, nearest
from clusterbench.host_facts import Host, at, described_hosts, driver, mappings, nccl, network, torch

OPTION = "--accept-other"
"""Names the fields in which a recorded machine may be another one."""


@dataclass(frozen=True)
class Fingerprint:
    """A machine: nodes that are alike, and the software on them. An empty field is not known.

    Attributes
    ----------
    gpu
        As ``clusterbench/hardware`` names it, or its driver where it is not there; ``none`` without GPUs. What is
        computed and held depends on it.
    gpus_per_node
        What stays within a node depends on it.
    cpu
        Its model: it launches operators, and computes where there are no GPUs.
    driver
        Of the GPUs: it sets their clocks and copies between them.
    nccl
        It chooses the algorithm of every collective.
    torch
        Its kernels are products and attention.
    network
        Number, rate and link layer of the ports of a node: what leaves a node goes over them.
    step
        Version of ``train_step``: another one launches other operators.
    """

    gpu: str = ""
    gpus_per_node: str = ""
    cpu: str = ""
    driver: str = ""
    nccl: str = ""
    torch: str = ""
    network: str = ""
    step: str = ""

    def unlike(self, other: Fingerprint) -> tuple[str, ...]:
        """The fields that both know and that differ."""
        return tuple(
            name
            for name in FIELDS
            if getattr(self, name) and getattr(other, name) and getattr(self, name) != getattr(other, name)
        )

    def not_compared(self, other: Fingerprint) -> tuple[str, ...]:
        """The fields that one of them alone knows."""
        return tuple(name for name in FIELDS if bool(getattr(self, name)) != bool(getattr(other, name)))

    @property
    def words(self) -> str:
        """``gpu h100-sxm-80gb, gpus_per_node 8``; empty where nothing is known."""
        return ", ".join(f"{name} {getattr(self, name)}" for name in FIELDS if getattr(self, name))


FIELDS = tuple(field.name for field in fields(Fingerprint))
"""In the order in which they matter: of two machines that are equally near the one is nearer that is alike in more of
the first."""

OF_GPUS = ("gpu", "gpus_per_node", "driver", "nccl")
"""The fields that say nothing of what CPU ranks reach."""


UNKNOWN = Fingerprint()
"""Of which nothing is said, so that nothing differs."""


def fingerprint_of(environment: Mapping[str, Any], step: int | None = None) -> Fingerprint:
    """Of the hosts of an ``environment.json``; a field in which they differ names all values.

    Parameters
    ----------
    step
        Version of the steps that were run; None where there are none.
    """
    hosts = described_hosts(environment).values()
    said = {name: " and ".join(_values(look, hosts)) for name, look in _LOOKS.items()}
    return Fingerprint(**said, step="" if step is None else str(step))


def _values(look: Callable[[Host], str | None], hosts: Iterable[Host]) -> list[str]:
    return sorted({value for host in hosts if (value := look(host)) is not None})


def named_gpu(name: str | None) -> str:
    """A GPU as its driver has it, by its name in the tables where it is there.

    >>> named_gpu("NVIDIA H100 80GB HBM3"), named_gpu("NVIDIA L41S")
    ('h100-sxm-80gb', 'NVIDIA L41S')
    """
    card = find_accelerator(name) if name else None
    return card.name if card else (name or "unknown")


def _gpu(host: Host) -> str | None:
    if not isinstance(host.get("gpus"), list):
        return None
    return " and ".join(sorted({named_gpu(gpu.get("name")) for gpu in mappings(host["gpus"])})) or "none"


def _gpus_per_node(host: Host) -> str | None:
    return str(len(mappings(host["gpus"]))) if isinstance(host.get("gpus"), list) else None


_LOOKS: Mapping[str, Callable[[Host], str | None]] = {
    "gpu": _gpu,
    "gpus_per_node": _gpus_per_node,
    "cpu": at("cpu_model"),
    "driver": driver,
    "nccl": nccl,
    "torch": torch,
    "network": network,
}


def accepted_fields(text: str | None) -> tuple[str, ...]:
    """``driver,nccl``: fields, apart by commas.

    Raises
    ------
    SuiteError
        For a word that is none of them.
    """
    words = tuple(dict.fromkeys(word.strip() for word in text.split(","))) if text else ()
    for word in words:
        if word not in FIELDS:
            raise SuiteError(f"{OPTION} {word!r} is no field.{nearest(word, FIELDS)}\nFields: {', '.join(FIELDS)}.")
    return words


def nearest_machine(recorded: Sequence[Fingerprint], here: Fingerprint, accepted: Collection[str], of: str) -> int:
    """Which of the machines that a file holds figures of is this one, fields aside in which it may be another.

    Parameters
    ----------
    of
        The file, for the message.

    Raises
    ------
    SuiteError
        If none is: the nearest is named with the fields in which it differs. Also if a field was accepted that does
        not differ, which has no effect.
    """
    near = min(range(len(recorded)), key=lambda number: _distance(recorded[number], here))
    differing = recorded[near].unlike(here)
    if other := [name for name in differing if name not in accepted]:
        raise SuiteError(f"{_told(recorded, near, here, of)}\n{_hint(other, accepted)}")
    if idle := [name for name in accepted if name not in differing]:
        raise SuiteError(
            f"{OPTION} {idle[0]} has no effect: {of} is not of a machine that is known to have another {idle[0]}."
        )
    return near


def _distance(recorded: Fingerprint, here: Fingerprint) -> tuple[object, ...]:
    unlike = recorded.unlike(here)
    return len(unlike), [name in unlike for name in FIELDS], len(recorded.not_compared(here))


def _told(recorded: Sequence[Fingerprint], near: int, here: Fingerprint, of: str) -> str:
    differing = recorded[near].unlike(here)
    there, mine = (
        ", ".join(f"{name} {getattr(machine, name)}" for name in differing) for machine in (recorded[near], here)
    )
    which = "the nearest recorded has" if len(recorded) > 1 else "it has"
    return f"{of} is of another machine: {which} {there}, and this one {mine}."


def _hint(other: Sequence[str], accepted: Collection[str]) -> str:
    words = ",".join(name for name in FIELDS if name in accepted or name in other)
    return f"hint: {OPTION} {words} uses it all the same; figures of this machine are better"
