"""How often ``compare`` is wrong, on invented runs: ``python -m tests.simulate_compare [aa found excluded]``.

The laws of noise and the settings were written down, and committed, before any design was run on them. A setting that a
design misses is a reason to change the design, never the setting.

The law of a run
----------------
The logarithm of an iteration's time is the sum of

- the machine's **drift**: normal, shared by all cases, autocorrelated along the order in which a run goes through its
  cases, repeat after repeat (``drift_kept`` is the correlation between a case's repeat and its next);
- the effect of a **start**, one a case and repeat: normal, or Student's t with 3 degrees of freedom of the same
  standard deviation, and in some laws one start of 20 is disturbed and takes 30 % longer;
- the noise of an **iteration**: normal and autocorrelated within its start; in some laws one iteration of 20 takes
  longer by a factor of one plus an exponential of mean 1.

Both runs of a pair follow one law and share nothing else.

What is asked
-------------
``aa``: the same program in both runs; any *worse*, of a case or of the run as a whole, in at most 5 % of the pairs.
``found``: a slowdown by twice the margin, 10 repeats, a coefficient of variation of 2 % from start to start and as much
from iteration to iteration: *worse* in at least 95 %. In one case, which itself has to be found, and in all. Slower
everywhere, the run has to be *worse* with 4 repeats, too.
``excluded``: one case takes 20 % longer; exit code 0 in at most 1 of 1,000 pairs, at any number of iterations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PAIRS = 2000
MARGIN = 0.05
ITERATION_KEPT = 0.7
SPIKES = 0.05
DISTURBED, DISTURBED_BY = 0.05, 0.30

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """Standard deviations of logarithms; shares and correlations as fractions."""

    name: str
    start_sd: float
    iteration_sd: float
    drift_sd: float = 0.0
    drift_kept: float = 0.0
    start_tails: Literal["normal", "t3"] = "normal"
    iteration_kept: float = ITERATION_KEPT
    spikes: float = 0.0
    disturbed: float = 0.0


LAWS = (
    Law("quiet", start_sd=0.01, iteration_sd=0.02),
    Law("heavy tails", start_sd=0.03, iteration_sd=0.05, start_tails="t3", spikes=SPIKES),
    Law("disturbed", start_sd=0.01, iteration_sd=0.02, disturbed=DISTURBED),
    Law("drifting", start_sd=0.02, iteration_sd=0.02, drift_sd=0.02, drift_kept=0.8),
    Law("drift alone", start_sd=0.003, iteration_sd=0.01, drift_sd=0.03, drift_kept=0.8),
    Law("rough", 0.07, 0.10, drift_sd=0.07, drift_kept=0.8, start_tails="t3", spikes=SPIKES),
    Law("violent", 0.20, 0.20, drift_sd=0.20, drift_kept=0.8, start_tails="t3", spikes=SPIKES),
)
CV_2 = Law("cv 2 %", start_sd=0.02, iteration_sd=0.02, iteration_kept=0.0)
CV_2_HEAVY = replace(CV_2, name="cv 2 %, heavy tails", start_tails="t3")

Planted = Literal["nowhere", "one case", "all cases"]
_PLANTED: tuple[Planted, ...] = ("one case", "all cases")


@dataclass(frozen=True)
class Setting:
    """So many pairs of runs are drawn of it; ``slower`` is planted in one case or in all of the second run."""

    kind: Literal["aa", "found", "excluded"]
    law: Law
    cases: int
    repeats: int
    iterations: int = 10
    slower: float = 0.0
    planted: Planted = "nowhere"


def settings() -> list[Setting]:
    """All of them: 173 of ``aa``, 14 of ``found``, 210 of ``excluded``."""
    drifting, heavy = LAWS[3], LAWS[1]
    return [
        *(Setting("aa", law, *sizes) for law, *sizes in product(LAWS, (1, 10, 100), (1, 2, 3, 4, 5, 10, 20))),
        *(Setting("aa", *sizes) for sizes in product((drifting, heavy), (1, 10), (1, 4, 10), (2, 100))),
        *(Setting("aa", CV_2, cases, 10) for cases in (1, 100)),
        *(
            Setting("found", law, cases, 10, slower=2 * MARGIN, planted=planted)
            for law, cases, planted in product((CV_2, CV_2_HEAVY), (1, 10, 100), _PLANTED)
        ),
        *(Setting("found", CV_2, cases, 4, slower=2 * MARGIN, planted="all cases") for cases in (10, 100)),
        *(
            Setting("excluded", law, 1, repeats, iterations, 0.20, "one case")
            for law, repeats, iterations in product(LAWS, (1, 2, 3, 5, 10, 20), (1, 2, 10, 100))
        ),
        *(
            Setting("excluded", law, 10, repeats, 10, 0.20, "one case")
            for law, repeats in product(LAWS, (1, 2, 3, 5, 10, 20))
        ),
    ]


def logarithms(setting: Setting, pairs: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Of iteration times, in both runs of each pair: ``[pair, case, repeat, iteration]``."""
    base, new = (_run(setting, pairs, random) for _ in range(2))
    if setting.planted != "nowhere":
        new[:, : 1 if setting.planted == "one case" else None] += np.log1p(setting.slower)
    return base, new


def _run(setting: Setting, pairs: int, random: np.random.Generator) -> Floats:
    law, cases, repeats = setting.law, setting.cases, setting.repeats
    shape = (pairs, cases, repeats)
    start = random.standard_normal(shape)
    if law.start_tails == "t3":
        start = random.standard_t(3, shape) / np.sqrt(3.0)  # the variance of Student's t with 3 degrees of freedom
    level = law.start_sd * start + np.log1p(DISTURBED_BY) * (random.random(shape) < law.disturbed)
    if law.drift_sd:
        drift = _autocorrelated(pairs, repeats * cases, law.drift_kept ** (1 / cases), random)
        level += law.drift_sd * drift.reshape(pairs, repeats, cases).swapaxes(1, 2)
    noise = _autocorrelated(pairs * cases * repeats, setting.iterations, law.iteration_kept, random)
    times = level[..., None] + law.iteration_sd * noise.reshape(*shape, setting.iterations)
    if law.spikes:
        longer = np.log1p(random.standard_exponential(times.shape))
        times += np.where(random.random(times.shape) < law.spikes, longer, 0.0)
    return times


def _autocorrelated(series: int, length: int, kept: float, random: np.random.Generator) -> Floats:
    """Stationary first-order autoregressions of variance 1, one a row."""
    drawn: Floats = random.standard_normal((series, length))
    if kept:
        drawn[:, 1:] *= np.sqrt(1 - kept**2)
        for step in range(1, length):
            drawn[:, step] += kept * drawn[:, step - 1]
    return drawn
