from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.formulas.statistics import median
from clusterbench.host_facts import Host, at, described_hosts, driver, mapping, mappings, nccl, package
from clusterbench.types import Severity
from clusterbench.words import few, plural

MOST_CLOCK_OFFSET_S = 1.0
MEMORY_TOLERANCE = 0.015
"""A module of 32 is 3.1 %; what kernels keep for themselves differs by less than 1 %."""
_NAMED = 4  # hosts in a sentence


@dataclass(frozen=True)
class Difference:
    """One thing in which hosts differ; ``hosts`` are those that are not like most."""

    sentence: str
    hosts: tuple[str, ...]
    severity: Severity = "warning"


class UnlikeHosts(Diagnosis):
    """Hosts of one run that are not alike.

    What it looks for
    -----------------
    Differences in what each host said of itself before the run: GPUs, driver, NCCL, torch, clusterbench, Python,
    kernel, CPU, memory of hosts and of GPUs of one model (by more than 1.5 %), InfiniBand ports with rate and state,
    network cards, the MTU of the interface that carries the run, NCCL's and other recorded variables, and clocks that
    are more than a second apart. What a host did not say is not compared.

    Why it matters
    --------------
    All ranks wait for the slowest. A host with another driver or NCCL may choose other algorithms, or hang; one with a
    port that is down halves a ring; another MTU loses large packets only. A figure of unlike hosts belongs to none.

    How to confirm
    --------------
    environment.json in the run's folder holds every host. Run the suite on the odd hosts alone, and without them.

    What usually fixes it
    ---------------------
    One image and one environment for all hosts; a scheduler's constraint that keeps kinds of nodes apart; for ports
    and MTU the network's administrator; for clocks a time service (chrony, ntpd). Drain a host that lacks hardware.
    """

    def answer(self, reading: Reading) -> Answer:
        said = _of_runs(reading)
        used = {host for history in reading.histories for seen in history.observations for host in seen.hosts}
        most = max(map(len, reading.hosts_of_runs), default=len(used))
        if said.findings:
            return said
        if most < 2 or not reading.ran_here:
            return Answer()
        if not said.healthy:
            described = sum(bool(host) for host in (reading.environment.get("hosts") or {}).values())
            takes = "environment.json with every host, as 'clusterbench run' writes it"
            return Answer(not_judged=(NotJudged("hosts", f"{described} of {len(used)} are described", takes),))
        return said


def _of_runs(reading: Reading) -> Answer:
    """Of runs that stand side by side each by itself: that they were on unlike machines is no fault of either."""
    hosts = reading.environment.get("hosts") or {}
    own = [{name: hosts[name] for name in names} for names in reading.hosts_of_runs] or [hosts]
    answers = [of_facts({**reading.environment, "hosts": of_run}) for of_run in own]
    findings = tuple(dict.fromkeys(finding for answer in answers for finding in answer.findings))
    healthy = tuple(dict.fromkeys(sentence for answer in answers for sentence in answer.healthy))
    if findings or len(reading.own_hosts(hosts)) < 2:  # one host in several runs is alike to none
        return Answer(findings)
    return Answer(healthy=healthy)


def of_facts(environment: Mapping[str, Any]) -> Answer:
    """What the diagnosis says of hosts as they describe themselves; nothing where fewer than two do."""
    described = sum(bool(host) for host in (environment.get("hosts") or {}).values())
    findings = tuple(
        Finding(
            f"host{'s' * (len(difference.hosts) > 1)} {few(difference.hosts)}",
            difference.sentence,
            difference.severity,
            # Where the odd ones are not the fewer, nothing says which of them are as they should be.
            among=difference.hosts if 2 * len(difference.hosts) < described else (),
        )
        for difference in differences(environment)
    )
    if findings or described < 2:
        return Answer(findings)
    return Answer(healthy=(f"{plural(described, 'host')} are alike in what they say of themselves",))


def differences(environment: Mapping[str, Any]) -> list[Difference]:
    """In what the hosts of a run's environment differ, what matters most first; nothing where all are alike.

    Parameters
    ----------
    environment
        As in ``environment.json``: ``hosts`` by name, and where workers were started ``loaded``.
    """
    hosts: Mapping[str, Host] = environment.get("hosts") or {}
    compared = [
        _compared(what, known, "note" if what in _NOTES else "warning") for what, known in traits(environment).items()
    ]
    return [*filter(None, compared), *_gpu_memory(hosts), *_memory(hosts), *_clocks(hosts)]


def traits(environment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What hosts are compared in, each with what each host said of it: ``{"the GPU driver": {"cb3": "570.86"}}``."""
    described = described_hosts(environment)
    variables = sorted({variable for host in described.values() for variable in mapping(host.get("variables"))})
    looks: Mapping[str, Callable[[Host], str | None]] = {
        **_LOOKS,
        **{variable: partial(_variable, variable) for variable in variables},
        **_NOTES,
    }
    return {
        what: {name: value for name, host in described.items() if (value := look(host)) is not None}
        for what, look in looks.items()
    }


def traits_and_settings(environment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The same with what checks judge on each host by itself, and what may have changed from one run to another."""
    described = described_hosts(environment)
    settings = {
        what: {name: value for name, host in described.items() if (value := look(host)) is not None}
        for what, look in _SETTINGS.items()
    }
    return {**traits(environment), **settings}


def memories(*environments: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of each run's hosts; those near the median of all are alike, as a few bytes differ with every kernel."""
    runs = [
        {
            name: float(host["memory_bytes"])
            for name, host in described_hosts(run).items()
            if _is_number(host.get("memory_bytes")) and host["memory_bytes"] > 0
        }
        for run in environments
    ]
    sizes = [size for run in runs for size in run.values()]
    usual = median(sizes) if sizes else 0.0
    return [
        {name: _gib(usual if abs(size - usual) <= MEMORY_TOLERANCE * usual else size) for name, size in run.items()}
        for run in runs
    ]


def _compared(what: str, known: Mapping[str, str], severity: Severity) -> Difference | None:
    """``NCCL is 2.27.3 on cb3 and 2.28.9 on the other 3 hosts``; None where all that is known is the same."""
    counts = Counter(known.values())
    if len(counts) < 2:
        return None
    # Of values that are equally common, that of the first host stands for the others.
    usual = counts.most_common(1)[0][0]
    odd = {value: [host for host in known if known[host] == value] for value in counts if value != usual}
    words = [f"{value} on {few(own)}" for value, own in odd.items()]
    rest = [host for host in known if known[host] == usual]
    others = few(rest) if len(rest) == 1 else f"the other {len(rest)} hosts"
    sentence = f"{what} is {', '.join(words)} and {usual} on {others}"
    return Difference(sentence, tuple(host for own in odd.values() for host in own), severity)


# What is looked at. None is what a host did not say.


def _gpus(host: Host) -> str | None:
    if not isinstance(host.get("gpus"), list):
        return None
    models = Counter(str(gpu.get("name")) for gpu in mappings(host["gpus"]))
    return " and ".join(f"{count} x {model}" for model, count in models.items()) or "none"


def _infiniband(host: Host) -> str | None:
    """``8 ports of 400 Gb/sec (4X NDR), ACTIVE``."""
    if not isinstance(host.get("infiniband"), list):
        return None
    kinds = Counter(
        (str(port.get("rate")), str(port.get("state")).rsplit(": ", 1)[-1]) for port in mappings(host["infiniband"])
    )
    words = [f"{count} port{'s' * (count > 1)} of {rate}, {state}" for (rate, state), count in sorted(kinds.items())]
    return " and ".join(words) or "absent"


def _cards(host: Host) -> str | None:
    interfaces = mappings(host.get("network"))
    if not any("physical" in interface for interface in interfaces):
        return None
    return str(sum(bool(interface.get("physical")) and bool(interface.get("is_up")) for interface in interfaces))


def _mtu(host: Host) -> str | None:
    carries = host.get("interface")
    sizes = [
        interface.get("mtu_bytes")
        for interface in mappings(host.get("network"))
        if carries and interface.get("name") == carries
    ]
    return f"{sizes[0]} B" if sizes else None


def _variable(name: str, host: Host) -> str | None:
    variables = host.get("variables")
    return str(variables.get(name, "not set")) if isinstance(variables, Mapping) else None


_LOOKS: Mapping[str, Callable[[Host], str | None]] = {
    "the GPU driver": driver,
    "the set of GPUs": _gpus,
    "NCCL": nccl,
    "torch": package("torch"),
    "clusterbench": package("clusterbench"),
    "InfiniBand": _infiniband,
    "the number of network cards that are up": _cards,
    "the MTU of the interface that carries the run": _mtu,
    "the CPU": at("cpu_model"),
    "the number of CPUs": at("num_logical_cpus"),
    "the number of CPUs that may be used": at("num_usable_cpus"),
}
_NOTES: Mapping[str, Callable[[Host], str | None]] = {
    "Python": at("python"),
    "the kernel": at("kernel"),
}


def _of_gpus(name: str, words: Callable[[object], str]) -> Callable[[Host], str | None]:
    """What all GPUs of a host say; None where one of them does not."""

    def look(host: Host) -> str | None:
        facts = mapping(mapping(host.get("facts")).get("gpus")).get("gpus")
        said = [gpu.get(name) for gpu in mappings(facts) or mappings(host.get("gpus"))]
        if not said or None in said:
            return None
        counts = Counter(map(words, said))
        return " and ".join(value if len(counts) == 1 else f"{value} on {count}" for value, count in counts.items())

    return look


def _in(unit: str, scale: float = 1.0) -> Callable[[object], str]:
    return lambda value: f"{value * scale:.0f} {unit}" if _is_number(value) else str(value)  # type: ignore[operator]


def _governor(host: Host) -> str | None:
    return " and ".join(sorted(mapping(mapping(mapping(host.get("facts")).get("processor")).get("governors")))) or None


_SETTINGS: Mapping[str, Callable[[Host], str | None]] = {
    "the power limit of GPUs": _of_gpus("power_limit_w", _in("W")),
    "the application clock of GPUs": _of_gpus("application_clock_hz", _in("MHz", 1e-6)),
    "ECC of GPUs": _of_gpus("ecc", lambda value: "on" if value else "off"),
    "MIG of GPUs": _of_gpus("mig", lambda value: "on" if value else "off"),
    "the CPU governor": _governor,
    "MPI": at("mpi", "library"),
}


def _memory(hosts: Mapping[str, Host]) -> Iterator[Difference]:
    """Against the median host, as far as most are like it: a few bytes differ with every kernel."""
    sizes = {name: host["memory_bytes"] for name, host in hosts.items() if _is_number(host.get("memory_bytes"))}
    if not sizes:
        return
    usual = sorted(sizes.values())[len(sizes) // 2]
    odd = [name for name, size in sizes.items() if abs(size - usual) > MEMORY_TOLERANCE * usual]
    if 2 * len(odd) >= len(sizes):
        words = " and ".join(f"{_gib(sizes[group[0]])} on {few(group)}" for group in _alike(sizes))
        yield Difference(f"the memory is {words}", tuple(sizes))
    elif odd:
        words = ", ".join(f"{_gib(sizes[name])} on {name}" for name in odd[:_NAMED])
        more = f" and less alike on {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        yield Difference(f"the memory is {words}{more}, and {_gib(usual)} on most hosts", tuple(odd))


def _gpu_memory(hosts: Mapping[str, Host]) -> Iterator[Difference]:
    """GPUs with less or more memory than most of their model have, also beside others of one host."""
    of_model: dict[str, dict[tuple[str, str], float]] = {}
    for host, described in hosts.items():
        for gpu in mappings(mapping(described).get("gpus")):
            if _is_number(gpu.get("memory_bytes")):
                place = host, str(gpu.get("index"))
                of_model.setdefault(str(gpu.get("name")), {})[place] = gpu["memory_bytes"]
    for model, sizes in of_model.items():
        usual = sorted(sizes.values())[len(sizes) // 2]
        odd = [place for place, size in sizes.items() if abs(size - usual) > MEMORY_TOLERANCE * usual]
        if odd:
            gpus = few([f"{_gib(sizes[host, index])} on GPU {index} of {host}" for host, index in odd], _NAMED)
            on_most = f"{_gib(usual)} on " + ("most" if 2 * len(odd) < len(sizes) else "others")
            sentence = f"the memory of {model} is {gpus}, and {on_most} of them"
            yield Difference(sentence, tuple(dict.fromkeys(host for host, _ in odd)))


def _alike(sizes: Mapping[str, float]) -> list[list[str]]:
    """Hosts in groups of one size, each within the tolerance of its smallest."""
    groups: list[list[str]] = []
    for name in sorted(sizes, key=sizes.__getitem__):
        if groups and sizes[name] <= sizes[groups[-1][0]] * (1 + MEMORY_TOLERANCE):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.0f} GiB"


def _clocks(hosts: Mapping[str, Host]) -> Iterator[Difference]:
    offsets = {name: host["clock_offset_s"] for name, host in hosts.items() if _is_number(host.get("clock_offset_s"))}
    for name, offset_s in offsets.items():
        if abs(offset_s) > MOST_CLOCK_OFFSET_S:
            which = "ahead of" if offset_s > 0 else "behind"
            sentence = f"the clock of {name} is {abs(offset_s):.1f} s {which} that of {next(iter(hosts))}"
            yield Difference(f"{sentence}; compare times in logs with care", (name,), "note")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30
