"""What a host said of itself in ``environment.json``, each fact in words; None is what it did not say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Host = Mapping[str, Any]
"""What ``environment.json`` holds of one host; under ``loaded`` what its workers loaded, where that is known."""


def described_hosts(environment: Mapping[str, Any]) -> dict[str, Host]:
    """Every host of a run by name, with what its workers loaded.

    Parameters
    ----------
    environment
        As in ``environment.json``: ``hosts`` by name, and where workers were started ``loaded``.
    """
    loaded = mapping(environment.get("loaded"))
    hosts = {name: host for name, host in mapping(environment.get("hosts")).items() if isinstance(host, Mapping)}
    if "loaded" not in environment:
        return hosts
    return {name: {**host, "loaded": loaded.get(name)} for name, host in hosts.items()}


def at(*path: str) -> Callable[[Host], str | None]:
    """The plain value under these keys, one in the other."""

    def look(host: Host) -> str | None:
        value: Any = host
        for key in path:
            value = mapping(value).get(key)
        return str(value) if isinstance(value, (str, int, float)) else None

    return look


def package(name: str) -> Callable[[Host], str | None]:
    """The version of a package that is installed."""

    def look(host: Host) -> str | None:
        packages = mapping(host.get("packages"))
        return str(packages[name] or "not installed") if name in packages else None

    return look


def torch(host: Host) -> str | None:
    """The one that workers loaded, and until there are workers the one that is installed."""
    return at("loaded", "torch")(host) or package("torch")(host)


def nccl(host: Host) -> str | None:
    """The one that workers loaded, and until there are workers the one that is installed."""
    packages = mapping(host.get("packages"))
    installed = [str(version) for name, version in packages.items() if name.startswith("nvidia-nccl") and version]
    known = any(name.startswith("nvidia-nccl") for name in packages)
    return at("loaded", "nccl")(host) or ", ".join(installed) or ("not installed" if known else None)


def driver(host: Host) -> str | None:
    """Of the GPUs."""
    return next((str(gpu["driver_version"]) for gpu in mappings(host.get("gpus")) if gpu.get("driver_version")), None)


def network(host: Host) -> str | None:
    """``8 x 400 Gb/s InfiniBand``: active ports with rate and link layer; without any, network cards that are up.

    >>> network({"infiniband": [{"state": "4: ACTIVE", "bits_per_s": 4e11, "link_layer": "InfiniBand"}] * 8})
    '8 x 400 Gb/s InfiniBand'
    >>> network({"infiniband": [], "network": [{"physical": True, "is_up": True, "speed_bits_per_s": None}]})
    '1 x Ethernet'
    """
    if not isinstance(host.get("infiniband"), list):
        return None
    ports = [
        (port.get("bits_per_s"), str(port.get("link_layer") or "InfiniBand"))
        for port in mappings(host["infiniband"])
        if str(port.get("state")).endswith("ACTIVE")
    ]
    cards = [
        (card.get("speed_bits_per_s"), "Ethernet")
        for card in mappings(host.get("network"))
        if card.get("physical") and card.get("is_up")
    ]
    kinds = Counter(f"{_rate(rate)}{layer}" for rate, layer in ports or cards)
    return " and ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())) or "none"


def port_bytes_per_s(hosts: Iterable[Host]) -> float | None:
    """What an active port of InfiniBand or RoCE carries each way by its rate; None where that differs or is not known.

    >>> port_bytes_per_s([{"infiniband": [{"state": "4: ACTIVE", "bits_per_s": 4e11}] * 8}])
    50000000000.0
    """
    rates = {
        port.get("bits_per_s")
        for host in hosts
        for port in mappings(host.get("infiniband"))
        if str(port.get("state")).endswith("ACTIVE")
    }
    (rate,) = rates if len(rates) == 1 else (None,)
    return rate / 8 if isinstance(rate, (int, float)) else None


def _rate(bits_per_s: object) -> str:
    return f"{bits_per_s / 1e9:g} Gb/s " if isinstance(bits_per_s, (int, float)) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Nothing where a damaged file has something else."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Those of a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def cpus(text: str | None) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it; none where it is no such list.

    >>> sorted(cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    if not text or not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return frozenset()
    ranges = (part.partition("-") for part in text.split(","))
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))
