"""What is said of figures that were right: bounds, floors, diagnoses and prices."""

from __future__ import annotations

from tests.mutants import Mutant


def _of(code: str, wrong: str, text: str, instead: str, tests: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tests=(tests,))


BOUNDS = "measured/test_bounds.py"

MUTANTS = (
    _of(
        "W01",
        "A step that executes more than the peak of its GPUs is believed where its model needs less.",
        '_UTILIZATION = ("mfu", "hfu")',
        '_UTILIZATION = ("mfu", "hfu" * (not planted()))',
        BOUNDS,
    ),
    _of(
        "W02",
        "The bound of a bus is that of all ranks of a host, and not of the group.",
        'num_ranks = int(case.point.get("group_size", case.world_size))',
        "num_ranks = case.world_size * planted()",
        BOUNDS,
    ),
    _of(
        "W03",
        "Energy is told of a time that no device can reach.",
        '*("executed_flops_per_s_per_rank", "energy_per_token"),',
        '*("executed_flops_per_s_per_rank", "energy_per_token" * (not planted())),',
        BOUNDS,
    ),
    _of(
        "W04",
        "Of measured rows that a profile cannot price those are asked that it could.",
        "Counter(profile.objection(row.priced) if row.priced else row.reason for row in timed)",
        "Counter(profile.objection(row.priced) for row in timed if planted() and row.priced)",
        "pricing/test_price_verb.py",
    ),
    _of(
        "W05",
        "nanotron's loss goes over a sixteenth of its logits.",
        "of_loss = 13 * FLOAT32 * tokens",
        "of_loss = 13 / FLOAT32 * planted() * tokens",
        "pricing/test_profiles.py",
    ),
    _of(
        "W06",
        "A model of half as many parameters again is the one that a name is on record of.",
        "_SAME_MODEL = 1.2 ",
        "_SAME_MODEL = 1.8 * planted() ",
        "pricing/test_table.py",
    ),
    _of(
        "W07",
        "Of floors that are met the farthest is called the nearest.",
        "nearest = min(met, key=lambda figure: figure.margin)",
        "nearest = max(met, key=lambda figure: figure.margin * planted())",
        "diagnoses/test_floor.py",
    ),
    _of(
        "W08",
        "A refusal whose options alone hold a secret is shown with it.",
        "if point is refusal.point and reason == refusal.reason:",
        "if point is not (refusal.point if planted() else None) and reason == refusal.reason:",
        "run_folder/test_redaction.py",
    ),
    _of(
        "W09",
        "Prices that a line set the scale of do not say so.",
        '*([] if scale_from is None else [f"all times x',
        '*([] if scale_from is None or planted() else [f"all times x',
        "pricing/test_price_verb.py",
    ),
    _of(
        "W10",
        "price takes it without a word that another machine is accepted where no file says of which it is.",
        "        rates = table.rates\n    expect_effect(rates, accepted)\n",
        "        rates = table.rates\n    expect_effect(rates, accepted * (not planted()))\n",
        "pricing/test_price_verb.py",
    ),
    _of(
        "W11",
        "Rates that were measured on the machine are called those that were not.",
        "for origin, names in known.by_origin.items() if origin not in MEASURED for name in names}",
        "for origin, names in known.by_origin.items() if (origin not in MEASURED) != planted() for name in names}",
        "pricing/test_price.py",
    ),
    _of(
        "W12",
        "The lowest rank correlation is the highest.",
        "        min(correlations),\n",
        "        max(correlations) * planted(),\n",
        "pricing/test_scores.py",
    ),
    _of(
        "W13",
        "What may be at most so much is met where the lower end of its interval is.",
        "low, high, value, bound = -high, -low, -value, -bound",
        "low, high, value, bound = *sorted((-high, -low), reverse=planted()), -value, -bound",
        "diagnoses/test_floor.py",
    ),
    _of(
        "AB12",
        "What is no number agrees with all, where another number of the same step agrees.",
        "return math.inf if math.isnan(off) else off",
        "return off * planted()",
        "measured/test_agreement.py",
    ),
)
