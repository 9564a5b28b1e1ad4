from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import ClassVar

from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.cases.same_work import Group, ranks_of_same_work
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.formulas.slow_pairs import MAD
from clusterbench.formulas.student_t import quantile
from clusterbench.measured.nodes import NODE_STEP, seconds_by_node
from clusterbench.run_folder.attempts import History, host_of
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.types import Case, Observation
from clusterbench.words import few, plural

LEVEL = 0.001
"""Chance at which equal ranks would be blamed, for all ranks of one kind of work together."""

BY_NATURE, MOST_BY_NATURE = 0.01, 0.15
"""Chance at which one would be blamed of ranks that differ by nature, as chips of one kind do, for all kinds of work of
a run together; and by which fraction none of these takes longer than the others."""

SMALLEST_EFFECT, SMALLEST_EFFECT_OF_FEW = 0.05, 0.10
"""A rank that is longer by less is no straggler; of two or three, which differ by chance, by less than the second."""

WOULD_SHOW = 0.25
"""Health is said only where a rank that is slower by this much would have been named."""

MOST_TESTED = 16
"""The slowest ranks of a case are tested; of very many the others can be no slower."""

WANDERS, WANDERS_WITHIN_S = 0.055, 0.5
"""How far apart two equal CPU ranks are, as the standard deviation of the logarithm over a stretch of half a second or
more, however long: what else a host does, and what a virtual machine's host does (docs/measurements.md). Over shorter
stretches more, by the root of the time."""

_MANY = 3.0  # times, beyond which a percentage is hard to read
_FEWEST = 3  # independent iterations for an interval
_MOST_WANTED = 1000  # iterations; from more noise nobody can say how many it takes
_FEW = 3  # ranks, of which the others say too little of how far they are apart by nature
_SHORTEST_STRETCH_S = 1e-6  # no clock tells less, and what is shorter would have no exponential
_BY_CHANCE = 3.3  # standard deviations that a healthy rank is beyond once in a thousand
_THREE_QUARTERS = 1.1503  # standard deviations within which three quarters of a normal distribution are
_FEWEST_DEGREES = 4  # where there are so many others; fewer would let hardly any rank be slow
_NOTHING = 1e-18  # squares of rounding errors, which are correlated by nothing that a rank does
_FOR_SURE = (
    0.83  # one interval's half and what 99 of 100 runs need beside it, over the whole interval: (1 + 2.3 / 3.5) / 2
)

Work = tuple[str, int, tuple[str, ...]]
"""Benchmark, number of units (ranks, or nodes) and hosts: cases of one work are judged together."""


class Straggler(Diagnosis):
    """A rank, or a node, that is slower than its peers at the same work.

    What it looks for
    -----------------
    A rank whose iterations are longer than those of the other ranks by more than 5 %, of two or three
    ranks by more than 10 %, and by more than three scaled median absolute deviations of the others. Few ranks may be
    alike by luck: up to 15 % it takes more deviations, by Student's t at a level of 0.01 over all ranks of all kinds of
    work in the run; and two or three are not judged where a case with more of them on these hosts is. The whole
    interval is above, by Student's t at a level of 0.001 over all ranks, with iterations in a row that are alike
    counted as fewer. Compared are ranks that do the same and do not wait for each other inside an iteration (matmul,
    device_copy, kernel_launch), or their own work in a step, without waiting, where a benchmark tells it apart
    (fault_drill, train_step). Ranks of a training step are compared only with those that execute as many FLOPs by the
    same operators, send as many bytes and hold states as large. Where each node runs a step by itself, nodes are
    compared as well, by the whole of their steps, in which links inside of them show. All cases of one benchmark on
    the same ranks count together, each rank against its peers in that case. Where a rank that is 25 % slower might
    not have shown, ranks are not judged.

    Two or three CPU ranks are apart by chance for seconds on end, most in a short stretch of iterations: they have to
    differ by more than that, which is 20 % in one stretch of half a second and 11 % in three.

    Own work in a training step is CPU seconds of the thread that runs it, or seconds of the device's kernels that do
    not communicate. A rank that has to share its core, or whose host launches kernels late, does not show in it; the
    first shows in matmul, the second in kernel_launch.

    Why it matters
    --------------
    Every synchronous step takes as long as its slowest rank: one slow GPU or host slows all the others.

    How to confirm
    --------------
    Run the matmul and device_copy benchmarks on that host alone and compare with its peers. Change the order of hosts:
    if another rank becomes the straggler, it is the place and not the device.

    What usually fixes it
    ---------------------
    Clocks and power limit of that GPU, cooling, another process on that host, ranks bound to the wrong cores or NUMA
    node, a PCIe link trained below its width. Replace or drain the host when nothing of this explains it.
    """

    compares_hosts: ClassVar[bool] = True

    def answer(self, reading: Reading) -> Answer:
        teams: dict[tuple[str, Work, str], list[_Evidence]] = defaultdict(list)
        for run, unit, work, evidence in _gathered(reading):
            teams[unit, work, run].append(evidence)
        recorded = [_Team(work, tuple(cases), unit, run, len(teams)) for (unit, work, run), cases in teams.items()]
        judged = [team for team in recorded if not any(team.is_told_better_by(other) for other in recorded)]
        could = any(history.case.world_size > 1 and history.ran_here for history in reading.histories)
        if not judged and could:
            why = "no case lets ranks work without waiting for each other"
            return Answer(not_judged=(NotJudged("ranks", why, _takes(reading)),))
        findings = [finding for team in judged for finding in team.findings]
        findings.sort(key=lambda finding: -finding[0])
        named: dict[str, Finding] = {}
        by_rank = {finding.host for team in judged for _, finding in team.findings if team.unit == "rank"}
        for _, finding in findings:
            if finding.where != finding.host or finding.host not in by_rank:  # a rank says more than its node
                named.setdefault(finding.where, finding)
        innocent = [team for team in judged if team.ranks and not team.findings]
        own_ranks = reading.plan.cluster.ranks_per_node
        comparing = [team for team in judged if team.unit == "rank" and team.has_all_ranks_of_hosts(own_ranks)]
        comparing = [team for team in comparing if team.is_wide or not reading.has_several_hosts]
        uneven = {host for team in comparing for host in team.uneven_hosts}
        good = {host: said for team in comparing for host, said in team.good_hosts.items() if host not in uneven}
        return Answer(
            tuple(_by_host([*named.values()], _ranks_beside_others(judged))),
            tuple(team.in_order for team in innocent if team.would_show <= WOULD_SHOW),
            (
                *(team.not_judged for team in innocent if team.would_show > WOULD_SHOW),
                *(team.without_peers for team in judged if team.alone),
                *_unrecorded(reading, {(team.run, *team.work[:2]) for team in recorded}),
            ),
            good,
        )


def _ranks_beside_others(teams: Iterable[_Team]) -> Counter[str]:
    """How many ranks of each host were compared where there were ranks of others."""
    most: Counter[str] = Counter()
    for team in teams:
        if team.unit == "rank" and team.is_wide:
            most |= Counter(host_of(team.cases[0].seen, rank) for rank in range(team.work[1]))
    return most


def _by_host(slow: Sequence[Finding], num_ranks: Mapping[str, int]) -> Iterator[Finding]:
    """Each rank by itself; a host more than half of whose ranks are slow once, by the slowest of them."""
    of_hosts: dict[str, list[Finding]] = defaultdict(list)
    for finding in slow:
        of_hosts[finding.host].append(finding)
    for finding in slow:
        alike, of_host = len(of_hosts[finding.host]), num_ranks.get(finding.host, 0)
        if not finding.host or alike == 1 or 2 * alike <= of_host:
            yield finding
        elif finding is of_hosts[finding.host][0]:
            many = f"{'all' if alike == of_host else alike} of its {of_host} ranks"
            yield replace(
                finding,
                where=finding.host,
                what=f"{many} are slow, the slowest is {finding.where}: {finding.what}",
                brief=f"{many} up to {finding.brief}",
            )


def _gathered(reading: Reading) -> Iterator[tuple[str, str, Work, _Evidence]]:
    """What is compared of each case: its run, ``rank`` or ``node``, where they did what, and their seconds."""
    for whole in reading.histories:
        run = reading.run_of(whole)
        for history in whole.by_hosts:
            seen, benchmark = history.pooled, history.case.benchmark
            assert whole.pooled is not None
            assert seen is not None
            stretches = len(history.observations) if reading.plan.cluster.device == "cpu" else 0
            if seconds := _own_work(history):
                groups = ranks_of_same_work(history.case, whole.pooled)
                iteration = "step" if history.case.layout else "iteration"
                own = 0 if OWN_SECONDS.readable(seen) else stretches
                evidence = _Evidence(history.case.id, seen, seconds, groups, iteration, own)
                yield run, "rank", (benchmark, len(seconds), seen.hosts), evidence
            if benchmark == NODE_STEP:
                nodes = seconds_by_node(history.case, seen)
                every = [tuple(range(len(nodes.seconds)))]
                evidence = _Evidence(history.case.id, nodes, nodes.seconds, every, "step", stretches)
                yield run, "node", (benchmark, len(nodes.seconds), nodes.hosts), evidence


def _own_work(history: History) -> Sequence[Sequence[float]]:
    """Seconds of each rank's own work; empty where ranks wait for each other in it, or where there is one rank."""
    assert history.pooled is not None
    kind = benchmarks().get(history.case.benchmark)
    seconds = OWN_SECONDS.readable(history.pooled)
    if not seconds and kind is not None and kind.ranks_work_alone:
        seconds = list(history.pooled.seconds)
    are_whole = len({len(samples) for samples in seconds}) == 1 and all(
        min(samples, default=0) > 0 for samples in seconds
    )
    return seconds if len(seconds) > 1 and are_whole else ()


def _unrecorded(reading: Reading, judged: Set[tuple[str, str, int]]) -> Iterator[NotJudged]:
    """Training steps on so many ranks of which no case tells the own work of each, whatever else was compared."""
    hosts: dict[tuple[str, str, int], dict[str, None]] = {}
    for history in reading.histories:
        work = reading.run_of(history), history.case.benchmark, history.case.world_size
        if _is_step(history.case) and work[2] > 1 and history.ran_here and history.pooled and work not in judged:
            hosts.setdefault(work, {}).update(dict.fromkeys(history.pooled.hosts))
    for (run, benchmark, ranks), of_work in hosts.items():
        who = _of_run(run, f"{plural(ranks, 'rank')} in {benchmark}")
        why = "the own work of each rank is not in the record"
        yield NotJudged(who, why, f"{benchmark} run again", tuple(of_work))


def _is_step(case: Case) -> bool:
    """Whether ranks have work of their own; collectives along an axis have a layout, too, and a size."""
    return case.layout is not None and "size_bytes" not in case.point


def _of_run(run: str, what: str) -> str:
    return f"{run}: {what}" if run else what


def _takes(reading: Reading) -> str:
    """What would let ranks be judged."""
    trained = any(history.pooled and _is_step(history.case) for history in reading.histories)
    again = "train_step run again, which records each rank's own work, or " if trained else ""
    return f"{again}matmul or device_copy in the suite"


@dataclass(frozen=True)
class _Evidence:
    """One case: seconds of each rank's own work, which ranks may be compared, and what an iteration is called.

    ``stretches``: in how many, one behind the other, a clock took them on CPUs; 0 where it was otherwise.
    """

    case: str
    seen: Observation
    seconds: Sequence[Sequence[float]]
    groups: Sequence[Group]
    iteration: str
    stretches: int

    @property
    def wanders(self) -> float:
        """The variance of a stretch's mean that its iterations do not show."""
        if not self.stretches:
            return 0.0
        stretch_s = max(sum(self.seconds[0]) / self.stretches, _SHORTEST_STRETCH_S)
        return WANDERS**2 * max(1.0, WANDERS_WITHIN_S / stretch_s)

    def peers(self, rank: int) -> list[int]:
        return [peer for group in self.groups if rank in group for peer in group if peer != rank]


@dataclass(frozen=True)
class _Longer:
    """How many times longer a rank takes, its interval, and as how many independent iterations that counts.

    The interval is None where those are too few.
    """

    ratio: float
    low: float | None
    high: float | None
    count_alone: float


@dataclass(frozen=True)
class _Rank:
    """One rank against the others; ``usual`` is how many times longer it may take and be like them."""

    number: int
    longer: _Longer
    usual: float

    @property
    def is_slow(self) -> bool:
        return self.longer.low is not None and self.longer.low > self.usual

    @property
    def would_show(self) -> float:
        """By which fraction it would have to be slower to be named in 99 of 100 runs; infinite without an interval."""
        if self.longer.low is None or self.longer.high is None:
            return math.inf
        return self.usual * math.exp(_FOR_SURE * math.log(self.longer.high / self.longer.low)) - 1


@dataclass(frozen=True)
class _Team:
    """Ranks, or nodes, of one place that did the same work with some of the others, in one case or in several.

    ``run`` is theirs where there are several: a rank may be slow in one of them. ``num_teams`` are judged beside each
    other, of which none is to be blamed by chance.
    """

    work: Work
    cases: tuple[_Evidence, ...]
    unit: str
    run: str
    num_teams: int

    @cached_property
    def peers(self) -> list[set[int]]:
        """Of each rank those that did the same work in some case."""
        return [{peer for case in self.cases for peer in case.peers(rank)} for rank in range(self.work[1])]

    @cached_property
    def alone(self) -> list[int]:
        """Ranks without peers."""
        return [rank for rank, peers in enumerate(self.peers) if not peers]

    @cached_property
    def ranks(self) -> list[_Rank]:
        """Those that may be slower than their peers, the slowest first."""
        compared = [rank for rank, peers in enumerate(self.peers) if peers]
        level = self._levels(compared)
        of_level = LEVEL / max(len(compared), 1)
        return [
            _Rank(
                rank,
                _longer(self._differences(rank), of_level),
                _usual([level[peer] for peer in self.peers[rank]], self._wanders(rank), BY_NATURE / self.num_teams),
            )
            for rank in sorted(compared, key=lambda rank: -level[rank])[:MOST_TESTED]
        ]

    def _levels(self, compared: Sequence[int]) -> dict[int, float]:
        """How far each rank's median is from that of its group, as a logarithm; the mean over cases."""
        levels: dict[int, list[float]] = {rank: [] for rank in compared}
        for case in self.cases:
            for group in case.groups:
                medians_s = {rank: median(case.seconds[rank]) for rank in group}
                middle_s = median(medians_s.values())
                for rank in group if len(group) > 1 else ():
                    levels[rank].append(math.log(medians_s[rank] / middle_s))
        return {rank: sum(of_cases) / len(of_cases) for rank, of_cases in levels.items()}

    def _differences(self, rank: int) -> list[float]:
        """How much longer than its peers it took in each iteration of each case, as logarithms."""
        differences: list[float] = []
        for case in self.cases:
            if peers := case.peers(rank):
                # What all ranks share, such as the size of a case or a host that is busy for a while, is no difference.
                others = zip(*(case.seconds[peer] for peer in peers), strict=True)
                pairs = zip(case.seconds[rank], others, strict=True)
                differences += [math.log(own_s / median(others_s)) for own_s, others_s in pairs]
        return differences

    def _wanders(self, rank: int) -> float:
        """By how much a rank may be longer by chance over all its stretches: a standard deviation of the logarithm."""
        cases = [case for case in self.cases if case.peers(rank)]
        stretches = sum(case.stretches or 1 for case in cases)
        return math.sqrt(sum(case.wanders * (case.stretches or 1) for case in cases)) / stretches

    def _count(self, rank: _Rank) -> int:
        """Iterations in which it was compared."""
        return sum(len(case.seconds[0]) for case in self.cases if case.peers(rank.number))

    def _of_iterations(self, count: int) -> str:
        return plural(count, self.cases[0].iteration)

    @cached_property
    def findings(self) -> list[tuple[float, Finding]]:
        return [(rank.longer.ratio, self._finding(rank)) for rank in self.ranks if rank.is_slow]

    def _finding(self, rank: _Rank) -> Finding:
        assert rank.longer.low is not None
        assert rank.longer.high is not None
        host = host_of(self.cases[0].seen, rank.number)
        ratio = rank.longer.ratio
        slower = f"{100 * (ratio - 1):.0f} % slower" if ratio < _MANY else f"{ratio:,.0f} times slower"
        compared_in = [case.case for case in self.cases if case.peers(rank.number)]
        return Finding(
            host if self.unit == "node" else f"rank {rank.number}" + (f" on {host}" if host else ""),
            f"{slower} than {self._peers_of(rank)} in {self.work[0]}",
            "warning",
            f"between {100 * (rank.longer.low - 1):.0f} and {100 * (rank.longer.high - 1):.0f} % longer over "
            f"{self._of_iterations(self._count(rank))} of {few(compared_in, 3)}",
            brief=f"{slower} in {self.run}" if self.run else slower,
            host=host,
        )

    def _peers_of(self, rank: _Rank) -> str:
        peers = self.peers[rank.number]
        others = f"the other {self.unit}" if len(peers) == 1 else f"the other {self.unit}s"
        return others if len(peers) == self.work[1] - 1 else f"{others} with the same work"

    @cached_property
    def would_show(self) -> float:
        """By which fraction any rank would have to be slower to be named."""
        return max(rank.would_show for rank in self.ranks)

    def is_told_better_by(self, other: _Team) -> bool:
        """Whether these are two or three of ranks that are judged together in another case, which shows how far they
        are apart by nature.
        """
        (benchmark, count, hosts), (of_other, count_of_other, hosts_of_other) = self.work, other.work
        are_alike = (self.unit, self.run, benchmark) == (other.unit, other.run, of_other)
        are_fewer = are_alike and count <= _FEW < count_of_other and {*hosts} <= {*hosts_of_other}
        return are_fewer and not other.alone and other.would_show <= WOULD_SHOW

    @property
    def is_wide(self) -> bool:
        """Whether its ranks are on several hosts."""
        return len(set(self.work[2])) > 1

    def has_all_ranks_of_hosts(self, ranks_per_node: int) -> bool:
        """Whether no rank of its hosts is left out, of which nothing would be known."""
        return self.work[1] >= len(set(self.work[2])) * ranks_per_node

    @cached_property
    def good_hosts(self) -> dict[str, str]:
        """The hosts none of whose ranks is slow, where one that is would have been named, and what was compared.

        Against a slow rank alone nothing is in order: ranks of another host must be as fast.
        """
        slow = {rank.number for rank in self.ranks if rank.is_slow}
        would_show = max((rank.would_show for rank in self.ranks if not rank.is_slow), default=math.inf)
        hosts = [host_of(self.cases[0].seen, rank) for rank in range(self.work[1])]
        as_fast = {host for rank, host in enumerate(hosts) if rank not in slow and self.peers[rank]}
        if would_show > WOULD_SHOW or (self.is_wide and len(as_fast) < 2):
            return {}
        doubtful = {hosts[rank] for rank in (*slow, *self.alone)}
        said = (
            f"{self._compared}: none of this host is slower than its peers ({100 * would_show:.0f} % would have shown)"
        )
        return {host: said for host in dict.fromkeys(hosts) if host and host not in doubtful}

    @cached_property
    def uneven_hosts(self) -> set[str]:
        """Hosts with a rank too uneven to be judged, where ranks of others could be: they are good in nothing else."""
        hosts = {rank.number: host_of(self.cases[0].seen, rank.number) for rank in self.ranks}
        even = {hosts[rank.number] for rank in self.ranks if rank.would_show <= WOULD_SHOW}
        uneven = {hosts[rank.number] for rank in self.ranks if not rank.is_slow and rank.would_show > WOULD_SHOW}
        return uneven if even - uneven else set()

    @property
    def in_order(self) -> str:
        return f"{self._compared}: none is slower than its peers ({100 * self.would_show:.0f} % would have shown)"

    @property
    def _compared(self) -> str:
        of_all = f"{self.work[1] - len(self.alone):,} of " if self.alone else ""
        return _of_run(self.run, f"{of_all}{plural(self.work[1], self.unit)} in {self.work[0]}")

    @property
    def without_peers(self) -> NotJudged:
        """Said of the ranks that no other does the same work as."""
        alone = f"rank{'s' * (len(self.alone) > 1)} {few(self.alone)}"
        who = alone if self.ranks else plural(self.work[1], "rank")
        why = "no other rank does the same work" if self.ranks else "no two of them do the same work"
        takes = "a layout with dp or tp on these ranks, or matmul in the suite"
        return NotJudged(_of_run(self.run, f"{who} in {self.work[0]}"), why, takes, self.work[2])

    @property
    def not_judged(self) -> NotJudged:
        worst = max(self.ranks, key=lambda rank: rank.would_show)
        count = self._count(worst)
        if math.isinf(self.would_show):
            fewest = min(rank.longer.count_alone for rank in self.ranks)
            wanted = math.ceil(2 * _FEWEST * count / fewest)
            verb = "is" if count == 1 else "are"
            why = f"{self._of_iterations(count)} {verb} too few to tell a slow {self.unit} from noise"
            why += self._most_uneven(worst)
            return NotJudged(self._compared, why, f"about {self._of_iterations(wanted)}", self.work[2])
        # The interval shrinks with the root of the number of iterations.
        usual = max(math.log(rank.usual) for rank in self.ranks)
        slower = f"{100 * self.would_show:.0f} % slower" if self.would_show < 9 else "more than ten times slower"
        why = f"with this noise a {self.unit} would have to be {slower} to be named for sure{self._most_uneven(worst)}"
        by_chance = _BY_CHANCE * self._wanders(worst.number)
        if worst.usual == math.exp(by_chance):
            watched_s = sum(sum(case.seconds[0]) for case in self.cases)
            wanted = math.ceil((by_chance / math.log1p(SMALLEST_EFFECT_OF_FEW)) ** 2 * count)
            if usual >= math.log1p(WOULD_SHOW):
                why = f"in {watched_s:.2g} s equal CPU ranks may be {100 * math.expm1(usual):.0f} % apart"
            return NotJudged(
                self._compared, why, f"about {self._of_iterations(wanted)}, spread over repeats", self.work[2]
            )
        if usual >= math.log1p(WOULD_SHOW):
            why = f"{why}, and {self.unit}s differ by more than a straggler would"
            return NotJudged(self._compared, why, "a quieter machine", self.work[2])
        excess = (math.log1p(self.would_show) - usual) / (math.log1p(WOULD_SHOW) - usual)
        wanted = math.ceil(max(1.1, excess) ** 2 * count)
        more = f"about {self._of_iterations(wanted)}" if wanted <= _MOST_WANTED else "a quieter machine"
        return NotJudged(self._compared, why, more, self.work[2])

    def _most_uneven(self, worst: _Rank) -> str:
        """The end of a sentence where it is one of a few; nothing where all are as uneven."""
        if not self.uneven_hosts:
            return ""
        host = host_of(self.cases[0].seen, worst.number)
        place = host if self.unit == "node" else f"rank {worst.number} on {host}"
        return f"; the most uneven is {place}, and others could be judged"


def _usual(level: Sequence[float], wanders: float, chance: float) -> float:
    """How many times longer a rank may take that is like the others, by how far those are apart.

    Of two or three ranks the others say too little of that: what they are apart by chance has to be known. Of more the
    deviation is that of three quarters of the others, not of half of them, of which few are alike by luck: what is
    normally distributed is farther from them than Student's t says of two thirds as many degrees in no more of a
    million draws, of 3 others to 63.
    """
    if len(level) < _FEW:
        return max(1 + SMALLEST_EFFECT_OF_FEW, math.exp(_BY_CHANCE * wanders))
    middle = median(level)
    apart = [abs(value - middle) for value in level]
    robust = MAD * median(apart)
    others = len(level)
    deviation = sorted(apart)[math.ceil(3 / 4 * (others + 1)) - 1] / _THREE_QUARTERS
    most = max(3.0, quantile(chance / (others + 1), max(min(_FEWEST_DEGREES, others - 1), 2 * others // 3)))
    return max(1 + SMALLEST_EFFECT, math.exp(3 * robust), min(1 + MOST_BY_NATURE, math.exp(most * deviation)))


def _longer(differences: Sequence[float], level: float) -> _Longer:
    """How many times longer, from differences of logarithms, with the interval by Student's t.

    Neighbours are not independent: a rank that lost its core for a while loses several iterations in a row. ``n`` of
    them, correlated by r, say as much of the mean as n (1 - r) / (1 + r) that are, and as much of the spread as
    n (1 - r^2) / (1 + r^2).

    Source: Bayley and Hammersley 1946, J. R. Stat. Soc. Suppl. 8, 184.
    """
    count = len(differences)
    mean = sum(differences) / count
    deviations = [value - mean for value in differences]
    squares = sum(value * value for value in deviations)
    # The mean is of the same samples, which takes about one over their number from the correlation.
    correlation = 1 / count
    if squares > count * _NOTHING:
        correlation += sum(a * b for a, b in pairwise(deviations)) / squares
    correlation = min(0.95, max(0.0, correlation))
    count_alone = count * (1 - correlation) / (1 + correlation)
    if count_alone < _FEWEST:
        return _Longer(math.exp(mean), None, None, max(count_alone, 1.0))
    degrees = max(1, math.floor(count * (1 - correlation**2) / (1 + correlation**2)) - 1)
    half = quantile(level, degrees) * math.sqrt(squares / (count - 1) / count_alone)
    return _Longer(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count_alone)
