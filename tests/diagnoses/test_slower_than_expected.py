"""A step beyond the bound of its price is a finding where the rates are of this machine, and nowhere else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.cases.prices import PricedCase, Prices
from clusterbench.confront import steps_of_run
from clusterbench.derive import AskedRates, read
from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.slower_than_expected import SlowerThanExpected
from clusterbench.pricing import Price
from clusterbench.pricing.rates_file import rates_text
from clusterbench.pricing.verb import calibrate_table
from clusterbench.run_folder import RunFolder
from tests.report.synthetic import case, reading, row

ROOT = Path(__file__).parents[2]
PRICE = Price(1.0, {"compute": 0.5, "tp": 0.3, "latency": 0.1, "launch": 0.1}, 1 / 1.2, 1.2)
LIMIT_S = 1.392  # 1.2 to the power of 2.3263 / 1.2816


def of(step_s: float, spread: float = 0.01, parts: dict[tuple[str, str], float] | None = None, **told: Any) -> Answer:
    """The answer on one step of 20 iterations that lie within ``spread`` of its time."""
    one = case("a")
    rows = [row(one, value=step_s, low=step_s * (1 - spread), high=step_s * (1 + spread), iterations=20)]
    for (part, axis), seconds in (parts or {}).items():
        detail = {"part": part, "axis": axis} if axis else {"part": part}
        rows.append(row(one, "step_part", seconds, detail=detail))
    priced = PricedCase(**{"price": PRICE, "basis": "priced by rates.yaml", "tokens": 1, **told})
    run = replace(reading(cases=[one], rows=rows), prices=Prices({one.id: priced}))
    return SlowerThanExpected().answer(run)


def test_a_step_beyond_the_bound_of_99_percent_is_a_finding() -> None:
    (finding,) = of(1.5).findings
    assert finding.title == "planted/1n4/a, 50 % slower than priced"
    assert finding.what == "1.500 s, 50 % slower than priced: 1.000 s, and 99 % of steps are shorter than 1.392 s"
    assert finding.evidence == "which part is longer is not known: no step was traced; priced by rates.yaml"
    assert finding.severity == "warning"


@pytest.mark.parametrize("step_s", [0.3, 1.0, 1.25, LIMIT_S])
def test_a_step_within_it_is_in_order(step_s: float) -> None:
    answer = of(step_s)
    assert (answer.findings, answer.not_judged) == ((), ())
    assert answer.healthy == ("1 step within the 99 % bound of their price",)


def test_noise_is_taken_off_first() -> None:
    assert of(1.41, spread=0.001).state == "found"
    assert of(1.41, spread=0.2).state == "healthy"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {("compute", ""): 0.5, ("exposed_communication", "tp"): 1.4, ("exposed_communication", "dp"): 0.1},
            "communication: 1.500 s (tp 1.400 s, dp 100.000 ms), priced 400.000 ms",
        ),
        ({("compute", ""): 1.6, ("exposed_communication", "tp"): 0.4}, "computing: 1.600 s, priced 500.000 ms"),
        ({("compute", ""): 0.5, ("rest", ""): 1.5}, "the rest: 1.500 s, priced 100.000 ms"),
        (
            {("compute", ""): 0.5, ("imbalance", ""): 1.5},
            "waiting for ranks with the same work: 1.500 s, priced 0 s",
        ),
        ({("compute", ""): 0.5, ("bubble", ""): 1.5}, "pipeline bubble: 1.500 s, priced 0 s"),
    ],
)
def test_the_part_that_is_longer_by_most_is_named(parts: dict[tuple[str, str], float], said: str) -> None:
    (finding,) = of(2.0, parts=parts).findings
    assert finding.evidence.startswith(f"the part that is longer by most is {said}; ")


def test_a_price_that_rests_on_rates_of_elsewhere_is_shown_and_not_judged() -> None:
    answer = of(9.0, price=replace(PRICE, unmeasured={"busbw": 0.2}))
    assert (answer.findings, answer.healthy) == ((), ())
    (part,) = answer.not_judged
    assert part.what == "1 step against their price"
    assert part.why == "their prices rest on busbw, not measured on this machine"
    assert part.takes.startswith("rates of busbw that were measured on this machine: clusterbench calibrate RUN")
    (part,) = of(9.0, doubts=("no price with CP was ever held against a measurement",)).not_judged
    assert part.why == "no price with CP was ever held against a measurement"


def test_without_rates_there_is_nothing_to_judge() -> None:
    one = case("a")
    assert SlowerThanExpected().answer(reading(cases=[one], rows=[row(one)])).state == "nothing to judge"


# A real run, with rates that its own steps determine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("real") / "run"
    return Path(shutil.copytree(ROOT / "reports" / "examples" / "tp_scale-cpu", made))


@pytest.fixture(scope="module")
def rates(folder: Path) -> Path:
    """What the run's own steps determine, with the network as if it had been probed."""
    found, _ = calibrate_table(steps_of_run(folder), "ours")
    probed = {
        key: replace(rate, origin="baseline", low=rate.value, high=rate.value)
        for key, rate in found.by_key.items()
        if rate.origin == "typical"
    }
    path = folder.parent / "rates.yaml"
    path.write_text(rates_text(found.but(probed)))
    return path


DELAY = 10
"""Beyond the bound: four ranks shared two cores in that run, so one rate of products fits its steps within 2.3 only."""


def answer_of(run: Reading) -> Answer:
    return SlowerThanExpected().answer(run)


def test_the_run_itself_is_in_order(folder: Path, rates: Path) -> None:
    answer = answer_of(read(RunFolder.open(folder), AskedRates(rates)))
    assert answer.state == "healthy", answer
    assert answer.healthy == ("5 steps within the 99 % bound of their price",)


def test_a_planted_delay_is_found_in_the_case_that_has_it(folder: Path, rates: Path, tmp_path: Path) -> None:
    slow = Path(shutil.copytree(folder, tmp_path / "slow"))
    lines = (slow / "observations.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        if record["case"].endswith("/tp2"):
            record["seconds"] = [[DELAY * seconds for seconds in rank] for rank in record["seconds"]]
    (slow / "observations.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (finding,) = answer_of(read(RunFolder.open(slow), AskedRates(rates))).findings
    assert finding.where.endswith("/tp2")
    assert "slower than priced" in finding.brief
    assert finding.evidence.startswith("the part that is longer by most is ")
