"""The hosts of a run as launchers and schedulers take them, and what a terminal says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from clusterbench.hosts import Host, Hosts, Judged
from clusterbench.run_folder import RunFolder
from clusterbench.words import few

HOSTS, BAD_HOSTS = "hosts.json", "bad_hosts.txt"
MPICH, OPEN_MPI, KUBERNETES = "good_hosts.mpich", "good_hosts.openmpi", "affinity.yaml"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Of a host that goes into a list: whatever else stands in a record may mean something to the program that reads it."""

_ACCEPTED: dict[Judged, str] = {"bad": "not accepted", "not judged": "not judged", "good": "accepted"}
_MOST_LINES = 64
_MOST_REASONS = 2

_AFFINITY = """\
# Goes into a pod's spec. The names are those that the hosts gave; a pod that has a name of its own gave that.
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {{key: kubernetes.io/hostname, operator: NotIn, values: {names}}}
"""


def write_lists(run: RunFolder, hosts: Hosts | None, with_not_judged: bool = False) -> None:
    """Writes hosts.json and the lists beside it; no empty one, which srun refuses and mpirun takes for this host.

    Parameters
    ----------
    with_not_judged
        Whether hosts that are not judged count as good in the lists; hosts.json says what they are.
    """
    texts = list_texts(hosts, with_not_judged) if hosts else {}
    for name in (HOSTS, MPICH, OPEN_MPI, BAD_HOSTS, KUBERNETES):
        if name in texts:
            run.write(name, texts[name])
        else:
            run.remove(name)


def list_texts(hosts: Hosts, with_not_judged: bool) -> dict[str, str]:
    """The text of each file, by its name.

    Source: MPICH's Hydra (``a:4``), Open MPI's ``--hostfile`` (``a slots=4``), Slurm's srun(1) ``--exclude``,
    Kubernetes' node affinity.
    """
    wanted = {"good", "not judged"} if with_not_judged else {"good"}
    good = _names([host.name for host in hosts.hosts if host.judged in wanted])
    bad = _names(hosts.named("bad"))
    texts = {HOSTS: hosts.as_json()}
    if good:
        texts[MPICH] = _lines([f"{name}:{hosts.ranks_per_node}" for name in good])
        texts[OPEN_MPI] = _lines([f"{name} slots={hosts.ranks_per_node}" for name in good])
    if bad:
        texts[BAD_HOSTS] = _lines(bad)
        texts[KUBERNETES] = _AFFINITY.format(names=json.dumps(bad))
    return texts


def hosts_in_words(hosts: Hosts | None, folder: Path) -> str:
    """Lines for a terminal: what lies there, and what to do next. Nothing where nothing is known, or of one host."""
    if hosts is None or len(hosts.hosts) < 2 or not (hosts.named("good") or hosts.named("bad")):
        return ""
    good, bad, others = (len(hosts.named(judged)) for judged in ("good", "bad", "not judged"))
    names = _names(hosts.named("bad"))
    counts = [f"{bad} bad" + (f" ({few(names)})" if names else "")] if bad else []
    counts += [f"{good} good"] if good else []
    counts += [f"{others} not judged"] if others else []
    lines = [f"hosts: {', '.join(counts)}; {folder / HOSTS} says why"]
    if names:
        lines.append(f"hint: --exclude {_as_path(folder / BAD_HOSTS)} leaves the bad ones out, also with srun")
    elif good:
        lines.append(f"hint: --hostfile {folder / MPICH} (Open MPI: {OPEN_MPI}) gives mpirun the good ones")
    return "\n".join(lines)


def accepted_in_words(hosts: Hosts | None) -> str:
    """A line for each host of an acceptance: whether it is accepted, and why; those that are not stand first.

    A name that means something to a terminal stands in quotes.
    """
    if hosts is None:
        return ""
    ordered = [host for judged in _ACCEPTED for host in hosts.hosts if host.judged == judged]
    shown = [(_ACCEPTED[host.judged], _shown(host.name), _why(host)) for host in ordered[:_MOST_LINES]]
    width = max((len(name) for _, name, _ in shown), default=0)
    lines = [f"{word:<12}  {name:<{width}}  {why}" for word, name, why in shown]
    left = len(ordered) - len(shown)
    return "\n".join([*lines, *([f"and {left:,} more hosts in {HOSTS}"] if left else [])])


def _why(host: Host) -> str:
    """What speaks against it, what it would take to judge it, or in what it is in order."""
    said = [f"{each.kind.replace('_', ' ')}: {each.sentence}" for each in host.evidence]
    if host.judged == "not judged":
        return "; ".join([*said[: min(host.num_against, 1)], "to be judged: " + few([*host.takes], _MOST_REASONS)])
    return few(said, _MOST_REASONS)


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else ascii(name)


def _as_path(path: Path) -> str:
    """With a slash, by which srun knows a file from a name."""
    return str(path) if "/" in str(path) else f"./{path}"


def _names(hosts: Sequence[str]) -> list[str]:
    return [host for host in hosts if _NAME.fullmatch(host)]


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
