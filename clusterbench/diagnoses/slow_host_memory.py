from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding
from clusterbench.diagnoses._peers import Peer
from clusterbench.run_folder.attempts import History, host_of
from clusterbench.units import format_value
from clusterbench.words import few, plural

_BENCHMARKS = ("host_copy", "cpu_memory")
_LONGER, _AT_BEST = 4 / 3, 1.2
_FEWEST = 3
"""Hosts: of two nobody knows which is as it should be."""


class SlowHostMemory(Diagnosis):
    """A host whose memory, or whose copies between memory and GPUs, are slower than those of the others.

    What it looks for
    -----------------
    In host_copy and cpu_memory, on three hosts or more: a rank that takes a third longer than the median of the ranks
    of its place on all hosts, and in its best iteration still a fifth longer. Ranks of one host are not compared: they
    share its memory and PCIe switches, and some are nearer to them by design. Less is not named, as it depends on
    where a host had pages free. A host more than half of whose ranks are slow is named as a whole.

    Why it matters
    --------------
    Batches, offloaded states and checkpoints pass between host and GPU, and NCCL's proxies and data loaders go through
    the host's memory: the host that is slow there keeps all others waiting, while its products of matrices are fast.

    How to confirm
    --------------
    Run the same suite with the hosts in another order. 'nvidia-smi -q' and 'lspci -vv' show a PCIe link below its
    width or speed, 'dmidecode -t memory' a module that is missing or slow, 'numactl --hardware' a node without memory.

    What usually fixes it
    ---------------------
    One GPU: reseat it, its riser or its cable. A whole host: the memory modules that it lacks, their speed and the NUMA
    settings in the firmware's setup, ranks bound to the wrong NUMA node.
    """

    def answer(self, reading: Reading) -> Answer:
        slow: dict[tuple[str, str], list[_Rank]] = defaultdict(list)
        compared: dict[str, dict[str, int]] = defaultdict(dict)
        for history in (same for whole in reading.histories for same in whole.by_hosts):
            for ranks in _places(history) if reading.ran_here else ():
                for rank in _Rank.beside(ranks):
                    of_host = compared[history.case.benchmark]
                    of_host[rank.host] = max(of_host.get(rank.host, 0), rank.ranks_of_host)
                    if rank.is_slower(_LONGER, _AT_BEST):
                        slow[history.case.benchmark, rank.host].append(rank)
        found = [each for (benchmark, _), ranks in slow.items() for each in _findings(benchmark, ranks)]
        found.sort(key=lambda each: -each[0])
        healthy = tuple(
            f"{benchmark} on {plural(len(hosts), 'host')}: no rank takes {_LONGER:.2f} times as long as those of its "
            "place on others"
            for benchmark, hosts in compared.items()
            if not any(name == benchmark for name, _ in slow)
        )
        return Answer(tuple(finding for _, finding in found), healthy)


@dataclass(frozen=True, kw_only=True)
class _Rank(Peer):
    """A rank beside those of its place on all hosts."""

    number: int
    ranks_of_host: int


def _places(history: History) -> Iterator[list[_Rank]]:
    """The ranks of each place in a host, of the hosts that have one there; none of other benchmarks and few hosts."""
    seen = history.pooled
    if history.case.benchmark not in _BENCHMARKS or seen is None or not all(seen.seconds):
        return
    of_hosts: dict[str, list[int]] = defaultdict(list)
    for number in range(len(seen.seconds)):
        of_hosts[host_of(seen, number)].append(number)
    for place in range(max(map(len, of_hosts.values()))):
        ranks = [
            _Rank(
                host=host,
                case=history.case.id,
                seconds=seen.seconds[numbers[place]],
                number=numbers[place],
                ranks_of_host=len(numbers),
            )
            for host, numbers in of_hosts.items()
            if host and place < len(numbers)
        ]
        if len(ranks) >= _FEWEST:
            yield ranks


def _findings(benchmark: str, ranks: Sequence[_Rank]) -> Iterator[tuple[float, Finding]]:
    """Of one host: one where more than half of its ranks are slow, else one of each; with how much longer they take."""
    of_ranks: dict[int, list[_Rank]] = defaultdict(list)
    for rank in ranks:
        of_ranks[rank.number].append(rank)
    is_whole = 2 * len(of_ranks) > max(rank.ranks_of_host for rank in ranks)
    for cases in [list(ranks)] if is_whole else of_ranks.values():
        worst = max(cases, key=lambda rank: rank.ratio)
        brief = f"{worst.ratio:.1f} times as long in {benchmark}"
        peers = "the ranks of the same places" if is_whole else "the ranks of the same place"
        of_cases = few(list(dict.fromkeys(rank.case for rank in cases)), 3)
        own, usual, best = (format_value(s, "s") for s in (worst.median_s, worst.usual_s, min(worst.seconds)))
        finding = Finding(
            worst.host if is_whole else f"rank {worst.number} on {worst.host}",
            f"takes {brief} as {peers} on the other hosts",
            "warning",
            f"{of_cases}: {own} in the median, and {usual} on the median host; at best {best}",
            brief=brief,
            host=worst.host,
        )
        yield worst.ratio, finding
