"""DeepEP's tests, V1 and V2: assertions that failed, and ranks held against each other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import deepep
from clusterbench.words import plural

_ASSERTION = re.compile(r"(?m)^.*AssertionError.*$")
_SLOW, _FEWEST = 2.0, 4


class DeepepTests(HostText):
    """A rank that takes twice as long as the median rank in the same phase. A rate has no peer in one run.

    All ranks move about as many bytes; where the test was asked for an unbalanced gate they do not, and times per byte
    are held against each other.
    """

    kind = "DeepEP's test"

    def holds(self, text: str) -> bool:
        return deepep.is_deepep(text)

    def read(self, text: str, name: str) -> Said:
        if (failed := _ASSERTION.search(text)) is not None:
            what, fix = "a check of DeepEP's results failed", "run it on each host alone, then on halves of them"
            evidence = f"{name}: {failed[0].strip()}"
            found = Found("wrong_result", "error", (name,), "", what, evidence, "run it again", fix)
            return Said(found=(found,), hosts=(name,))
        phases: dict[str, dict[int, list[deepep.RankTime]]] = defaultdict(lambda: defaultdict(list))
        for time in deepep.rank_times(text):
            phases[time.phase][time.rank].append(time)
        slow = tuple(_slow(phases, name))
        takes = "another run on the same number of ranks"
        rate = NotJudged("deepep_rate", (name,), "a rate has no peer in the text to be held against", takes)
        ranks = max((len(of) for of in phases.values()), default=0)
        if slow or ranks < _FEWEST:
            return Said(found=slow, not_judged=(rate,), hosts=(name,))
        what = f"{plural(ranks, 'rank')} take about as long in each of {plural(len(phases), 'phase')}"
        return Said(healthy=(Healthy("slow_rank", (name,), what),), not_judged=(rate,), hosts=(name,))


def _slow(phases: Mapping[str, Mapping[int, list[deepep.RankTime]]], name: str) -> Iterator[Found]:
    for phase, ranks in phases.items():
        own = {rank: median(time.time_s for time in times) for rank, times in ranks.items()}
        per_byte = {rank: median(time.time_s / time.size_bytes for time in ranks[rank]) for rank in ranks}
        if len(own) < _FEWEST:
            continue
        usual, usual_per_byte = median(own.values()), median(per_byte.values())
        for rank, time_s in own.items():
            if time_s > _SLOW * usual and per_byte[rank] > _SLOW * usual_per_byte:
                what = f"{phase} takes {time_s * 1e6:.0f} us, the median rank {usual * 1e6:.0f} us"
                worst = max(ranks[rank], key=lambda time: time.time_s)
                fix = "its GPU's clocks and NVLinks, its network card's link"
                confirm = "clusterbench doctor on its host"
                yield Found(
                    "slow_rank", "warning", (name,), f"rank {rank}", what, f"{name}: {worst.line}", confirm, fix
                )
