"""The GPUs of a host of which a launcher shows each process its own: what several processes say, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterbench.facts import OF_DRIVER
from clusterbench.facts.nvlinks import P2P
from clusterbench.host_facts import mapping, mappings


def are_new(known: Sequence[Mapping[str, Any]], seen: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a process sees GPUs of which none was seen by another."""
    return bool(seen) and not {_identity(gpu) for gpu in known} & {_identity(gpu) for gpu in seen}


def places_of(seen: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The numbers of the GPUs that one process sees, in its order, among all of its host."""
    identities = [_identity(gpu) for gpu in gpus]
    return tuple(identities.index(_identity(gpu)) for gpu in seen)


def together(known: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What a host is known to be, and what another of its processes says: the first word counts, but for new GPUs.

    These are numbered behind the others. Whether GPUs of two processes may read each other's memory is not known.
    """
    gpus, seen = mappings(known.get("gpus")), mappings(said.get("gpus"))
    host = {**said, **known}
    identities = {_identity(gpu) for gpu in gpus}
    if new := [gpu for gpu in seen if _identity(gpu) not in identities]:
        host["gpus"] = [*gpus, *_numbered(new, "index", len(gpus))]
    if "facts" in host:
        host["facts"] = _facts_together(mapping(known.get("facts")), mapping(said.get("facts")))
    return host


def _facts_together(known: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    of_gpus, of_links = OF_DRIVER
    gpus, seen = (mappings(mapping(facts.get(of_gpus)).get("gpus")) for facts in (known, said))
    both = {**said, **known}
    if not (gpus and are_new(gpus, seen)):
        return both
    both[of_gpus] = {**both[of_gpus], "gpus": [*gpus, *_numbered(seen, "index", len(gpus))]}
    links, more = (mapping(facts.get(of_links)) for facts in (known, said))
    if links.get("gpus") is not None and more.get("gpus") is not None:
        both[of_links] = {
            **links,
            "gpus": [*links["gpus"], *_numbered(more["gpus"], "gpu", len(gpus))],
            "num_pairs": None,
            "unread": {**mapping(links.get("unread")), P2P: "was not asked of GPUs that different processes see"},
        }
    return both


def _identity(gpu: Mapping[str, Any]) -> str:
    return str(gpu.get("uuid") or gpu.get("error"))


def _numbered(gpus: Sequence[Mapping[str, Any]], name: str, first: int) -> list[dict[str, Any]]:
    return [{**gpu, name: first + place} for place, gpu in enumerate(gpus)]
