"""In what the machines of two runs differ, over all hosts of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from clusterbench.diagnoses.unlike_hosts import memories, traits_and_settings
from clusterbench.run_folder.copies import sources_of
from clusterbench.words import few, plural


def machine_differences(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about what hosts of one run have and hosts of the other have not, or another share of them.

    Parameters
    ----------
    base, new
        As in ``environment.json``. What the hosts of one run did not say is not compared.
    """
    sources = sources_of(new), sources_of(base)
    if all(sources) and len(set(sources)) > 1:  # of one version there are many
        yield f"the sources of clusterbench are {sources[0]} in new and {sources[1]} in base"
    silent = [name for name, environment in (("base", base), ("new", new)) if not environment.get("hosts")]
    if silent:
        yield f"environment.json of {' and '.join(silent)} names no host, so machines cannot be compared"
        return
    of_base, of_new = traits_and_settings(base), traits_and_settings(new)
    for what in dict.fromkeys((*of_base, *of_new)):
        first, second = of_base.get(what, {}), of_new.get(what, {})
        if first and second and _differ(first, second):
            yield f"{what} is {_told(second, first)} in new and {_told(first, second)} in base"
    first, second = memories(base, new)
    if first and second and _differ(first, second):
        yield f"the memory is {_told(second, first)} in new and {_told(first, second)} in base"


def _differ(base: Mapping[str, str], new: Mapping[str, str]) -> bool:
    if any(base[host] != new[host] for host in base.keys() & new.keys()):
        return True
    if len(base) == len(new):
        return Counter(base.values()) != Counter(new.values())
    return set(base.values()) != set(new.values())


def _told(hosts: Mapping[str, str], others: Mapping[str, str]) -> str:
    """``2.28.9`` where all say the same; otherwise each value with its hosts, those first that the other run lacks."""
    counts = Counter(hosts.values())
    if len(counts) == 1:
        return next(iter(counts))
    ordered = sorted(counts, key=lambda value: (value in others.values(), counts[value]))
    return " and ".join(
        f"{value} on {few([host for host in hosts if hosts[host] == value])}"
        if counts[value] <= len(hosts) // 2
        else f"{value} on {plural(counts[value], 'host')}"
        for value in ordered
    )
