"""What a cluster is, as a file says it or as a run found it, in the place of options of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterbench.cluster import Accelerator, said_card
from clusterbench.errors import SuiteError, nearest
from clusterbench.fingerprint import UNKNOWN, Fingerprint
from clusterbench.options import as_yaml, option, options_of
from clusterbench.pricing.typical import nics_bytes_per_s
from clusterbench.yaml_lines import MOST_BYTES, Node, Scalar, Table, read_yaml

OPTION = "--cluster"

NAMES = ("gpu", "gpus_per_node", "num_nodes", "nics")
"""What is known of a cluster: fields of :class:`KnownCluster`, keys of a file, and options."""


@dataclass(frozen=True)
class _Keys:
    """The keys of a file."""

    gpu: str = option("", help="the card, by its name in the tables or as its driver has it")
    gpus_per_node: int = option(0, help="GPUs of each node", minimum=1, maximum=1024)
    num_nodes: int = option(0, help="nodes that there are", minimum=1, maximum=100_000)
    nics: str = option("", help="NICs of a node, as 8x400Gb")


@dataclass(frozen=True)
class KnownCluster:
    """A cluster as far as it is known; None is what is not.

    Attributes
    ----------
    nics
        Of a node, as ``8x400Gb``.
    source
        The file or the run that says it; empty where options alone do.
    places
        Of what is known by ``source``, where it stands there.
    may_have_more
        Whether there may be more nodes than ``num_nodes``: a run need not use all.
    machine
        With the software on it, where a run found it.
    """

    gpu: str | None = None
    gpus_per_node: int | None = None
    num_nodes: int | None = None
    nics: str | None = None
    source: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    may_have_more: bool = False
    machine: Fingerprint = UNKNOWN

    @property
    def card(self) -> Accelerator:
        """Its GPU.

        Raises
        ------
        SuiteError
            If there is none of this name, or none is known.
        """
        if self.gpu is None:
            more = f": {self.source} does not say it" if self.source else f", or {OPTION} FILE with 'gpu'"
            raise SuiteError(f"say the card: --gpu NAME{more}.")
        return said_card(self.gpu)

    @property
    def words(self) -> str:
        """``gpu h100-sxm-80gb, num_nodes 64``: all that is known."""
        return ", ".join(f"{name} {value}" for name in NAMES if (value := getattr(self, name)) is not None)

    def but(self, **options: str | int | None) -> KnownCluster:
        """The same with what options say beside it, by :data:`NAMES`; None is what they leave open.

        ``num_nodes`` is then the number asked about, which may be a part of the cluster.

        Raises
        ------
        SuiteError
            If an option contradicts what is known, with both places.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            known = getattr(self, name)
            if known is not None and not self._agrees(name, known, value):
                has = f"{known} nodes and no more" if name == "num_nodes" else f"{name} {known}"
                raise SuiteError(
                    f"{self.places[name]}: the cluster has {has}, but {_option(name)} is {value}.\n"
                    f"hint: leave out {_option(name)}, or {OPTION}"
                )
        return replace(self, **given)  # type: ignore[arg-type]

    def _agrees(self, name: str, known: Any, value: Any) -> bool:
        if name == "gpu":
            return said_card(value) == said_card(known)
        if name == "num_nodes":
            return self.may_have_more or value <= known
        return bool(value == known)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_cluster(path: Path) -> KnownCluster:
    """The cluster that a file describes, by :data:`NAMES`; what it leaves out is not known.

    Raises
    ------
    SuiteError
        For every mistake, with file and line, what was given and what is allowed.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SuiteError(f"{OPTION} {path} cannot be read: {error.strerror}.") from None
    root = read_yaml(data, str(path), "cluster file", "'gpu'")
    if not isinstance(root, Table):
        raise SuiteError(f"{path}:{root.line}: a cluster file is keys and values: {', '.join(NAMES)}.")
    known = {key: _value(key, node, f"{path}:{root.lines[key]}") for key, node in root.values.items()}
    places = {key: f"{path}:{line}" for key, line in root.lines.items()}
    if "gpu" in known:
        said_card(known["gpu"], f"{places['gpu']}: gpu")
    if "nics" in known:
        nics_bytes_per_s(known["nics"], f"{places['nics']}: nics")
    return KnownCluster(**known, source=str(path), places=places)


def _value(key: str, node: Node, place: str) -> Any:
    keys = options_of(_Keys)
    if key not in keys:
        raise SuiteError(
            f"{place}: a cluster file has no key {as_yaml(key)}.{nearest(key, keys)}\nKeys: {', '.join(keys)}."
        )
    if not isinstance(node, Scalar):
        raise SuiteError(f"{place}: '{key}' must be one value: {keys[key].allowed()}.")
    try:
        return keys[key].parse(node.value)
    except ValueError as error:
        raise SuiteError(f"{place}: '{key}' {error}") from None
