"""Which hosts a case needs in order to fail: what to run next, and what follows, from the runs so far. Pure.

Taken for granted is that a case which fails on some hosts also fails on more hosts with these among them. What
contradicts it is noticed, and hosts have then passed only after three runs.

Of n hosts, with L = ceil(log2 n): halving between what passes and what fails leaves one host after L runs. It then runs
with hosts it has not failed with, once or twice. Where it passes there, halving goes on among those it failed with, L
runs at most, and two hosts are left. The last runs are the proof: without the host the others pass; of two hosts, both
together fail twice, and all hosts without one of them pass twice.

Source: halving between a set that passes and one that fails is delta debugging, Zeller and Hildebrandt 2002, IEEE TSE
28(2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from clusterbench.words import plural

TRIES = 3
"""Runs on all hosts until the failure is called not reproduced; and runs that must pass once it comes and goes."""

PROOFS_OF_A_PAIR = 2
"""Runs in which two hosts must fail together, and all pass without one of them: one that comes and goes looks alike."""

MOST_CULPRITS = 3
"""That are looked for one after the other; more are not one fault on a host."""

FEWEST_HOSTS = 2
"""A bad link shows between two hosts only: on one host everything would pass."""

Answer = Literal["failed", "ok"]
Kind = Literal["host", "pair", "several", "together", "not reproduced", "comes and goes"]
"""``several``: more than one fault. ``together``: it takes these hosts to fail, and none is told from the others."""


@dataclass(frozen=True)
class Try:
    """One run, on these hosts."""

    hosts: tuple[str, ...]
    answer: Answer


@dataclass(frozen=True)
class Wanted:
    """The run that is to be made next, and what for."""

    hosts: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Found:
    """How a search ended.

    Attributes
    ----------
    culprits
        Hosts of one fault each: one host, or two that fail only together.
    hosts
        The fewest hosts on which the case failed where no culprit could be told.
    without_it
        The most hosts that passed without the culprits; none where nothing passed.
    """

    kind: Kind
    culprits: tuple[tuple[str, ...], ...] = ()
    hosts: tuple[str, ...] = ()
    without_it: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What the search is about.

    Parameters
    ----------
    hosts
        On which the case failed, in order.
    spares
        Other hosts that may take part.
    fits
        Whether the case can run on so many hosts.
    """

    hosts: tuple[str, ...]
    spares: tuple[str, ...]
    fits: Callable[[int], bool]

    def allows(self, size: int) -> bool:
        return size >= FEWEST_HOSTS and self.fits(size)


def next_step(setting: Setting, tries: Sequence[Try]) -> Wanted | Found:
    """The next run, or what follows from those that were made."""
    try:
        try:
            return _Search(setting, tries, passes_after=1).conclusion()
        except _Doubt:
            return _Search(setting, tries, passes_after=TRIES).conclusion()
    except _Unknown as unknown:
        return unknown.wanted


class _Unknown(Exception):
    """What the search needs to know and no run has shown."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted


class _Doubt(Exception):
    """One run without the failure is not enough to go by."""


@dataclass
class _Search:
    """The search from its beginning, over runs of which each is looked up: the same runs lead to the same place."""

    setting: Setting
    tries: Sequence[Try]
    passes_after: int
    culprits: list[tuple[str, ...]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.failed = {frozenset(each.hosts) for each in self.tries if each.answer == "failed"}
        self.passes = Counter(frozenset(each.hosts) for each in self.tries if each.answer == "ok")
        self.passed = {hosts for hosts, count in self.passes.items() if count >= self.passes_after}
        self.comes_and_goes = any(few <= many for few in self.failed for many in self.passes)

    def conclusion(self) -> Found:
        hosts = self.setting.hosts
        if not self._reproduced(hosts):
            return Found("not reproduced")
        if self.comes_and_goes:
            self._doubt()
            if any(few <= many for few in self.failed for many in self.passed):
                return Found("comes and goes", hosts=self._fewest())
        while True:
            found = self._one_fault(hosts)
            if found is None:
                return self._untold()
            self.culprits.append(found)
            left = self._what_fails_without(hosts, found)
            if left is None:
                self._clear_the_innocent(hosts)
                return self._named()
            self._doubt()
            if len(self.culprits) == MOST_CULPRITS:
                return self._untold()
            hosts = left

    def _doubt(self) -> None:
        if self.passes_after < TRIES:
            raise _Doubt

    def fails(self, hosts: Sequence[str], why: str, passes_after: int = 1) -> bool:
        """Whether the case fails on these hosts, as runs on them, on fewer or on more have shown."""
        asked = frozenset(hosts)
        if any(few <= asked for few in self.failed):
            return True
        enough = max(passes_after, self.passes_after)
        if any(asked <= many and count >= enough for many, count in self.passes.items()):
            return False
        again = ", once more" if any(asked == set(each.hosts) for each in self.tries) else ""
        raise _Unknown(Wanted(self._in_order(asked), f"{why}{again}"))

    def _in_order(self, hosts: frozenset[str]) -> tuple[str, ...]:
        return tuple(host for host in (*self.setting.hosts, *self.setting.spares) if host in hosts)

    def _reproduced(self, hosts: tuple[str, ...]) -> bool:
        """Whether the case fails on all hosts at least once; what took more than one try comes and goes."""
        whole = [each.answer for each in self.tries if frozenset(each.hosts) == frozenset(hosts)]
        if "failed" not in whole:
            if len(whole) >= TRIES:
                return False
            raise _Unknown(Wanted(hosts, f"all {len(hosts)}, try {len(whole) + 1} of {TRIES}"))
        return True

    # One fault

    def _one_fault(self, hosts: tuple[str, ...]) -> tuple[str, ...] | None:
        """The host, or the two, without which the case does not fail on these; None where they cannot be told."""
        failing, passing, common = hosts, frozenset[str](), list(hosts)
        suspects = list(hosts)
        while len(suspects) > 1:
            asked = self._half(suspects, failing, passing)
            if asked is None:
                return None
            if self.fails(asked, f"{plural(len(suspects), 'suspect')} left"):
                failing = asked
                suspects, common = _in(suspects, asked), _in(common, asked)
            else:
                passing = frozenset(asked)
                suspects = _not_in(suspects, asked)
        suspect = suspects[0]
        return self._alone_or_with(suspect, [host for host in common if host != suspect])

    def _half(self, suspects: Sequence[str], failing: Sequence[str], passing: frozenset[str]) -> tuple[str, ...] | None:
        """Half of the suspects, with what passed without them, on as many hosts as the case can run on."""
        kept = [host for host in failing if host in passing]
        others = self._others((*suspects, *kept))
        for number in _from_the_middle(len(suspects)):
            if asked := self._whole(suspects[:number], kept, others):
                return asked
        return None

    def _others(self, taken: Sequence[str]) -> list[str]:
        """Hosts that may fill up a run, spares first; none that was found to be a culprit."""
        accused = {host for culprit in self.culprits for host in culprit}
        return _not_in((*self.setting.spares, *self.setting.hosts), {*taken, *accused})

    def _whole(self, needed: Sequence[str], kept: Sequence[str], others: Sequence[str]) -> tuple[str, ...] | None:
        """Hosts on which the case can run: what is needed, and if possible all that is kept; None if it cannot be."""
        wanted = [*needed, *kept]
        for more in range(len(others) + 1):
            if self.setting.allows(len(wanted) + more):
                return tuple(wanted + list(others[:more]))
        for fewer in range(1, len(kept) + 1):
            if self.setting.allows(len(wanted) - fewer):
                return tuple(wanted[:-fewer])
        return None

    def _alone_or_with(self, suspect: str, partners: list[str]) -> tuple[str, ...] | None:
        """Whether a host fails with others than those it has failed with; otherwise which of these it takes."""
        while partners:
            asked = self._whole([suspect], [], [*self._others([suspect, *partners]), *partners])
            if asked is None or not _not_in(partners, asked):
                return None
            if not self.fails(asked, f"{suspect} with others"):
                return self._pair(suspect, _not_in(partners, asked))
            partners = _in(partners, asked)
        return (suspect,)

    def _pair(self, suspect: str, partners: list[str]) -> tuple[str, ...] | None:
        """The host with which alone another fails; None where it takes more than these two."""
        while len(partners) > 1:
            asked = self._with_half(suspect, partners)
            if asked is None:
                return None
            failed = self.fails(asked, f"{suspect} with {len(_in(partners, asked))} of {len(partners)} hosts")
            partners = _in(partners, asked) if failed else _not_in(partners, asked)
        if not partners:
            return None
        pair = self._in_order(frozenset([suspect, *partners]))
        asked = self._whole(pair, [], self._others(pair))
        return pair if asked and self._fail_again(asked, " and ".join(pair)) else None

    def _with_half(self, suspect: str, partners: Sequence[str]) -> tuple[str, ...] | None:
        others = self._others([suspect, *partners])
        wholes = (self._whole([suspect, *partners[:number]], [], others) for number in _from_the_middle(len(partners)))
        return next((asked for asked in wholes if asked), None)

    def _fail_again(self, pair: tuple[str, ...], why: str) -> bool:
        """Whether two hosts fail together as often as it takes to tell them from one that fails now and then."""
        if not self.fails(pair, why):
            return False
        times = sum(each.answer == "failed" for each in self.tries if frozenset(each.hosts) == frozenset(pair))
        if times < PROOFS_OF_A_PAIR:
            raise _Unknown(Wanted(self._in_order(frozenset(pair)), f"{why}, once more"))
        return True

    # What is left

    def _what_fails_without(self, hosts: tuple[str, ...], culprit: tuple[str, ...]) -> tuple[str, ...] | None:
        """Hosts that fail without each host of a fault in turn: there is another one; None where none do.

        One host that fails now and then looks like a pair, so for a pair each must pass twice.
        """
        enough = 1 if len(culprit) == 1 else PROOFS_OF_A_PAIR
        for host in culprit:
            left = [other for other in hosts if other != host]
            rest = self._whole([], left, self._others([*left, *culprit]))
            if rest and self.fails(rest, f"without {host}", enough):
                return rest
        return None

    def _clear_the_innocent(self, hosts: tuple[str, ...]) -> None:
        """Takes back who was accused only for having failed beside another culprit, before any hosts had passed."""
        good = [host for host in hosts if host not in self.culprits[-1]]
        for culprit in self.culprits[:-1]:
            asked = self._whole([*good, *culprit], [], self._others([*good, *culprit]))
            if not self._is_proven(culprit) and not (asked and self.fails(asked, f"{' and '.join(culprit)} again")):
                self.culprits.remove(culprit)

    def _fewest(self) -> tuple[str, ...]:
        return self._in_order(min(self.failed, key=lambda hosts: (len(hosts), sorted(hosts))))

    def _named(self) -> Found:
        if self.comes_and_goes and (len(self.culprits), len(self.culprits[0])) != (1, 1):
            return Found("comes and goes", hosts=self._fewest())  # one host that fails now and then looks like more
        kind: Kind = "several" if len(self.culprits) > 1 else ("host", "pair")[len(self.culprits[0]) - 1]
        without = [hosts for hosts in self.passed if not any(hosts >= set(culprit) for culprit in self.culprits)]
        if not without:
            return self._untold()
        own = set(self.setting.hosts)
        most = max(without, key=lambda hosts: (len(hosts), len(hosts & own), sorted(hosts)))
        return Found(kind, tuple(self.culprits), without_it=self._in_order(most))

    def _untold(self) -> Found:
        """Of several faults those stand that are proven: a run fails with them, and passes with all else of it."""
        proven = [culprit for culprit in self.culprits if self._is_proven(culprit)]
        return Found("several" if self.culprits else "together", tuple(proven), self._fewest())

    def _is_proven(self, culprit: tuple[str, ...]) -> bool:
        return all(any(few - many == {host} for few in self.failed for many in self.passed) for host in culprit)


def _in(hosts: Sequence[str], asked: Iterable[str]) -> list[str]:
    chosen = set(asked)
    return [host for host in hosts if host in chosen]


def _not_in(hosts: Sequence[str], asked: Iterable[str]) -> list[str]:
    chosen = set(asked)
    return [host for host in hosts if host not in chosen]


def _from_the_middle(number: int) -> Iterator[int]:
    """All numbers above 0 and below ``number``, the half of it first.

    >>> list(_from_the_middle(5))
    [2, 3, 1, 4]
    """
    yield from sorted(range(1, number), key=lambda each: (abs(each - number // 2), -each))
