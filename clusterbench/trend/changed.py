"""What changed in the environment from one run to a later one, as far as it is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from clusterbench.diagnoses.unlike_hosts import memories, traits, traits_and_settings
from clusterbench.host_facts import described_hosts
from clusterbench.run_folder.copies import sources_of
from clusterbench.words import few

NOTHING = "nothing that is compared changed"
_ABSENT = "unset or unknown"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences, one a difference; :data:`NOTHING` where there is none, and a reason where a run describes no host.

    Parameters
    ----------
    before, after
        As in ``environment.json``.
    """
    if not described_hosts(before) or not described_hosts(after):
        return ("not known: environment.json of one of both runs describes no host",)
    return tuple(_changes(before, after)) or (NOTHING,)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    first, second = (set(described_hosts(environment)) for environment in (before, after))
    if gone := sorted(first - second):
        yield f"without {few(gone)}"
    if new := sorted(second - first):
        yield f"now with {few(new)}"
    of_before, of_after = traits_and_settings(before), traits_and_settings(after)
    of_before["the memory"], of_after["the memory"] = memories(before, after)
    may_be_unset = {*traits(before), *traits(after)}
    for what in dict.fromkeys((*of_before, *of_after)):
        values = of_before.get(what, {}), of_after.get(what, {})
        if _differ(*values) and (all(values) or what in may_be_unset):
            old, now = (_told(hosts) for hosts in values)
            yield f"{what}: {old} -> {now}"
    sources = sources_of(before), sources_of(after)
    if all(sources) and len(set(sources)) > 1:  # of one version there are many
        yield f"the sources of clusterbench: {' -> '.join(sources)}"


def _differ(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Of the hosts of both runs by name; where there is another set of hosts, of the values that they have."""
    if any(before[host] != after[host] for host in before.keys() & after.keys()):
        return True
    return set(before.values()) != set(after.values())


def _told(hosts: Mapping[str, str]) -> str:
    """Each value, with its hosts where there are several; the most frequent first."""
    counts = Counter(hosts.values())
    if len(counts) < 2:
        return next(iter(counts), _ABSENT)
    return " and ".join(
        f"{value} on {few([host for host in hosts if hosts[host] == value])}" for value, _ in counts.most_common()
    )
