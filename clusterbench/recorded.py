"""A figure as a machine reached it so far: every sample, and what is to be expected of the next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from clusterbench.expectation import Expectation
from clusterbench.formulas.statistics import median, median_interval, summarise
from clusterbench.formulas.student_t import quantile
from clusterbench.words import plural

FEWEST = 3
"""Samples that show how far another would differ."""

ENOUGH = 9
"""Samples from which on quantiles need no law: the next one lies between the ends of nine with 80 %."""

_TAIL = 0.1


@dataclass(frozen=True)
class Recorded:
    """One figure of one case on one machine.

    A sample is what one repeat of a case came to: the median of its iterations. Samples are in order of time.

    Attributes
    ----------
    within
        Where the medians of endlessly many iterations of one or two repeats lie; None where there are more, which show
        how far repeats differ.
    source
        The runs, in words.
    by_run
        How many of the samples are of each run, in order; empty where that is not known.
    """

    unit: str
    samples: tuple[float, ...]
    within: tuple[float, float] | None
    source: str = ""
    by_run: tuple[int, ...] = ()

    def of_each_run(self) -> list[tuple[float, ...]]:
        """As many samples of each run, its first ones; all of them where it is not known whose they are.

        >>> Recorded("s", (1.0, 1.1, 2.0, 3.0, 3.1, 3.2), None, by_run=(2, 1, 3)).of_each_run()
        [(1.0,), (2.0,), (3.0,)]
        """
        ends = [*accumulate(self.by_run or (len(self.samples),))]
        fewest = min(self.by_run, default=len(self.samples))
        return [
            self.samples[end - count : end - count + fewest]
            for end, count in zip(ends, self.by_run or ends, strict=True)
        ]

    @cached_property
    def expectation(self) -> Expectation | None:
        """The median of all samples, with the interval for the next; None where one is 0 or less: that has no ratio.

        >>> Recorded("s", (1.0, 1.02, 0.98, 1.01), None).expectation.high.__round__(3)
        1.034
        """
        if min(self.samples) <= 0:
            return None
        value = median(self.samples)
        low, high = self._next()
        if low <= 0:  # noise beyond any ratio: as far below in shares as it reaches above
            low = value * value / high
        words = f"median of {plural(len(self.samples), 'sample')} of {self.source}"
        return Expectation(value, self.unit, min(low, value), max(high, value), "baseline", words)

    @property
    def doubt(self) -> float:
        """How far the median itself may be off, to the side where that is more, with 95 %."""
        value = median(self.samples)
        low, high = self._few() if len(self.samples) < FEWEST else median_interval(summarise(self.samples))
        return max(high - value, value - low)

    def _next(self) -> tuple[float, float]:
        """Where another sample lies with 80 %."""
        if len(self.samples) < FEWEST:
            return self._few()
        return of_next(self.samples)

    def _few(self) -> tuple[float, float]:
        """What is seen of one or two: their iterations, and both."""
        seen = (*self.samples, *(self.within or ()))
        return min(seen), max(seen)


def of_next(samples: Sequence[float]) -> tuple[float, float]:
    """Between which another sample of the same law lies with 80 %; all above 0, and three or more.

    From nine on quantiles at ranks 0.1 (n + 1) and 0.9 (n + 1), whatever the law. Of fewer Student's interval for one
    more of a normal law of the logarithms: s t sqrt(1 + 1/n) about their mean.

    >>> of_next(range(1, 10))
    (1.0, 9.0)
    """
    if len(samples) >= ENOUGH:
        low, *_, high = statistics.quantiles(samples, n=10, method="exclusive")
        return float(low), float(high)
    logarithms = [math.log(sample) for sample in samples]
    mean, count = statistics.fmean(logarithms), len(samples)
    half = quantile(_TAIL, count - 1) * statistics.stdev(logarithms) * math.sqrt(1 + 1 / count)
    return math.exp(mean - half), math.exp(mean + half)
