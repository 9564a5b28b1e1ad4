"""What a page says that a run is evidence for, held against what its verdict says."""

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.report.statements import can_say, cannot_say
from clusterbench.types import Case, Expected, Floor
from tests.report.synthetic import case, observation, outcome, reading, row

ASKED = {"parity_loss": Expected(1e-5, "1", "what rounding may do")}


def steps(*layouts: str, whole: str = "") -> Reading:
    """Training cases with a deviation each; the record holds all of the check of ``whole`` alone."""
    cases = [case(name, 2, benchmark="train_step", layout=name, expected=ASKED) for name in layouts]
    records = [(outcome(of), observation(of, evidence=_evidence(of, whole))) for of in cases]
    return reading(*records, cases=cases, rows=[row(of, "parity_loss", 1e-7, unit="1") for of in cases])


def _evidence(of: Case, whole: str) -> list[dict[str, float]]:
    return [{"parity_loss": 1e-7} if str(of.layout) == whole else {}] * of.world_size


def of_correctness(read: Reading) -> list[str]:
    return [said for said in can_say(read) if said.startswith("Correctness")]


def test_what_no_case_has_proven_is_no_evidence_of_correctness() -> None:
    """The verdict said that 0 of 11 were proven, and below it stood that each but those of 11 cases was."""
    read = steps("dp2", "tp2")
    assert of_correctness(read) == []
    why = "That each step computes the right thing: no training case is proven, and the verdict says why."
    assert why in cannot_say(read)


def test_where_some_are_proven_the_others_are_counted() -> None:
    read = steps("dp2", "tp2", whole="tp2")
    assert of_correctness(read)[0].startswith("Correctness: each layout but that of 1 case was held against one rank")
    assert not any(said.startswith("That each step") for said in cannot_say(read))


def test_an_import_is_not_told_to_set_repeats_in_a_suite() -> None:
    """Its figures are another program's: no suite asks for more of them."""
    of = case("a", benchmark="imported")
    once, again = ((outcome(of, attempt=number), observation(of, attempt=number)) for number in (1, 2))
    (said,) = (said for said in cannot_say(reading(once, cases=[of])) if "would repeat" in said)
    assert said.endswith("every case has one figure. Import several runs of the tool.")
    assert not any("would repeat" in said for said in cannot_say(reading(once, again, cases=[of])))
    assert cannot_say(steps("dp2", whole="dp2"))[-1].endswith("Set repeats in the suite.")


FLOOR = Floor("busbw", "at_least", "300 GB/s", "B/s", 300e9)


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({}, True),
        ({"floors": (FLOOR,)}, False),
        ({"floors": (replace(FLOOR, bound=None),)}, True),
        ({"point": {"axis": "tp"}}, False),  # within each host
        ({"num_nodes": 1}, False),
    ],
)
def test_where_nothing_says_what_a_network_must_reach_it_says_so(changes: Any, is_said: bool) -> None:
    """A network that was half as fast on all hosts alike was 'links are alike', and no more was said."""
    of = case("a", 16, benchmark="all_reduce", **{"num_nodes": 2, **changes})
    read = reading((outcome(of), observation(of, hosts=("n1", "n2"))), cases=[of])
    read = replace(read, plan=replace(read.plan, cluster=Cluster(2, 8, "cuda", "NVIDIA H200")))
    assert any(said.startswith("Whether the network between hosts") for said in cannot_say(read)) == is_said
