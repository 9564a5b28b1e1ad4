import pytest

from clusterbench.cases.ranking import Contest, Mfu, mfus, named, ranked, throughput
from clusterbench.cases.trained import Trained
from clusterbench.cases.trained import trained as cases_of
from clusterbench.charts._stories import LONGEST_REASON, mfu_story, speed_story
from clusterbench.drawing.panel import Story
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import MIB, Figures, trained
from tests.report.synthetic import case, observation

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98]


def step(layout: str, figures: Figures | float | None = None, **options: object) -> list[Row]:
    """A case by its throughput or by several figures; ``step_part/compute`` and such in seconds, with ``@axis``."""
    given = {"tokens_per_s": figures} if isinstance(figures, (int, float)) else dict(figures or {})
    parts = {name: given.pop(name) for name in list(given) if name.startswith("step_part")}
    status = str(options.pop("status", "ok"))
    rows = trained(layout, given, status=status, **options)
    for name, value in parts.items():
        part, _, axis = name.removeprefix("step_part/").partition("@")
        detail = {"part": part, "axis": axis} if axis else {"part": part}
        rows.append(rows[0]._replace(metric="step_part", unit="s", value=value, detail=detail))
    return rows


def contest(*cases: list[Row], seconds: dict[str, list[list[float]]] | None = None) -> Contest:
    """``seconds`` are those of each iteration by layout, a list for each repeat."""
    found = cases_of([row for rows in cases for row in rows])
    histories = {}
    for contestant in found:
        if repeats := (seconds or {}).get(str(contestant.layout)):
            of = case(str(contestant.layout), contestant.layout.world_size)
            seen = (observation(of, [times] * of.world_size, repeat=number) for number, times in enumerate(repeats, 1))
            histories[contestant.row.case] = History(of, (), tuple(seen))
    return Contest(found, histories)


def told(of: Contest) -> Story:
    return speed_story("here", of, None, "rank")


def reasons(of: Contest) -> list[str]:
    return [line[-1] for line in told(of).lines]


def only(rows: list[Row]) -> Trained:
    (contestant,) = cases_of(rows)
    return contestant


# Who is ahead


def test_a_configuration_is_named_as_in_a_suite() -> None:
    rows = step("pp2-dp4+zero1", 9, micro_batch_size=4, gradient_accumulation_steps=16)
    assert named(only(rows)) == "pp2-dp4+zero1, GAS 16, MBS 4"
    assert named(only(step("tp4", 9))) == "tp4"


def test_attempts_of_a_configuration_stand_behind_the_best_of_them() -> None:
    of = contest(step("dp4", 8, attempt=1), step("tp4", 9), step("dp4", 10, attempt=2), step("pp4", None))
    assert [[throughput(attempt) for attempt in attempts] for attempts in ranked(of.cases, throughput)] == [
        [10, 8],
        [9],
    ]


def test_every_case_has_a_line_and_what_went_wrong_comes_before_what_could_not_be() -> None:
    of = contest(
        step("pp4", status="refused"),
        step("tp4", 700),
        step("dp2-tp2", status="out_of_memory"),
        step("dp4", {"tokens_per_s": 900, "peak_memory/total": 3 * MIB}),
        step("cp4", status="not_run"),
    )
    assert told(of).columns == ("place", "configuration", "tokens/s", "step longer by", "peak memory", "why")
    assert told(of).lines == (
        ("1", "dp4", "900", "", "3MiB", "the fastest"),
        ("2", "tp4", "700", "29 %", "", "differs: DP 1 instead of 4, TP 4 instead of 1"),
        ("", "dp2-tp2", "", "", "", "out of memory: for a reason"),
        ("", "cp4", "", "", "", "not run: for a reason"),
        ("", "pp4", "", "", "", "refused: for a reason"),
    )
    homes = [home.partition(" ")[0] for home in told(of).cases]
    assert homes == ["planted/1n4/dp4", "planted/1n4/tp4", "planted/1n4/dp2-tp2", "planted/1n4/cp4", ""]
    assert told(of).sentences[-1] == "Of 5 cases: 2 with a figure, 1 out of memory, 1 not run, 1 refused."


def test_of_many_cases_the_first_are_listed_and_the_others_counted() -> None:
    slower = [step("dp4", 100 + number, micro_batch_size=number) for number in range(1, 51)]
    refused = [step("tp4", status="refused", micro_batch_size=number) for number in range(1, 2001)]
    story = told(contest(*slower, *refused))
    assert len(story.lines) == len(story.cases) == 40
    assert story.sentences[-2:] == (
        "Of 2,050 cases: 50 with a figure, 2,000 refused.",
        "The first 40 are listed; the others: 10 with a figure, 2,000 refused.",
    )


# How sure it is


def test_a_margin_beyond_the_noise_has_its_interval() -> None:
    slower = [1.10 * time for time in STEADY]
    of = contest(step("dp4", 110), step("tp4", 100), seconds={"dp4": [STEADY], "tp4": [slower]})
    assert of.margin is not None
    assert of.margin.is_told_apart is True
    assert of.margin.longer_by == pytest.approx(0.1)
    assert told(of).sentences[1] == (
        "The runner-up, tp4, takes 10 % longer for a step. That is more than noise: with 95 % confidence from 7.8 % to "
        "12 % (6 iterations against 6; another start may differ by more)."
    )


def test_a_margin_within_the_noise_is_not_told_apart_and_neither_are_the_next() -> None:
    seconds = {"dp4": [STEADY], "tp4": [STEADY[::-1]], "pp4": [STEADY], "cp4": [[2 * time for time in STEADY]]}
    cases = [step("dp4", 100), step("tp4", 99.9), step("pp4", 99.8), step("cp4", 50)]
    of = contest(*cases, seconds=seconds)
    assert of.margin is not None
    assert of.margin.is_told_apart is False
    assert told(of).sentences[1:3] == (
        "The runner-up, tp4, takes 0.1 % longer for a step. They are not told apart: with 95 % confidence the "
        "difference is from -2.0 % to 2.0 % (6 iterations against 6; another start may differ by more), and one below "
        "2.0 % would not show.",
        "2 configurations are not told apart from the fastest.",
    )
    assert [reason.startswith("not told apart; ") for reason in reasons(of)] == [False, True, True, False]


def test_with_repeats_enough_each_is_one_sample() -> None:
    fast, slow = ([[time, 50.0, time] for time in times] for times in (STEADY, [1.5 * time for time in STEADY]))
    of = contest(step("dp4", 15), step("tp4", 10), seconds={"dp4": fast, "tp4": slow})
    assert of.margin is not None
    assert of.margin.noise.endswith("(6 repeats against 6).")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([[1.0]], "With one sample nothing is known of the noise."),
        ([[1.0, 1.1]], "2 iterations against 2 are too few to tell the margin from noise."),
        ([], "Their samples are not at hand, so nothing is known of the noise."),
    ],
)
def test_without_samples_enough_nothing_is_said_of_noise(seconds: list[list[float]], words: str) -> None:
    of = contest(step("dp4", 15), step("tp4", 10), seconds={"dp4": seconds, "tp4": seconds})
    assert of.margin is not None
    assert (of.margin.is_told_apart, of.margin.noise) == (None, words)
    assert "not told apart" not in "".join(reasons(of))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (90, "They are not told apart: attempts at the same configuration differ by up to 11 %."),
        (99, "Attempts at the same configuration differ by up to 1.0 %, which is less."),
    ],
)
def test_attempts_show_the_noise_of_figures_without_samples(second: float, words: str) -> None:
    of = contest(step("dp4", 100, attempt=1), step("dp4", second, attempt=2), step("tp4", 95, attempt=1))
    assert told(of).sentences[1] == f"The runner-up, tp4, takes 5.3 % longer for a step. {words}"
    assert "another attempt at place 1" in reasons(of)


def test_two_that_are_equally_fast_are_both_named() -> None:
    of = contest(step("dp4", 100), step("tp4", 100), step("pp4", 80))
    assert told(of).sentences[0] == (
        "As fast as each other, and the fastest, are dp4 and tp4: 100 tokens/s, 25 tokens/s per rank."
    )
    assert [line[0] for line in told(of).lines] == ["1", "1", "3"]
    assert reasons(of)[:2] == ["as fast", "as fast"]


def test_what_the_peak_allows_stands_beside_the_fastest() -> None:
    rows = step("dp4", {"tokens_per_s": 100, "tokens_per_s!": 400})
    rows[0] = rows[0]._replace(basis="at most; model FLOPs at the dense peak")
    assert told(contest(rows)).sentences == (
        "The fastest is dp4: 100 tokens/s, 25 tokens/s per rank.",
        "Nothing else has a figure to compare it with.",
        "No layout can exceed 400 tokens/s (model FLOPs at the dense peak): this reaches 25 % of it.",
    )


# Why the others are not


def planted(compute: float, tp: float, bubble: float, imbalance: float = 0.0) -> Figures:
    parts = {"compute": compute, "exposed_communication@tp": tp, "bubble": bubble, "imbalance": imbalance}
    return {"tokens_per_s": 1000 / sum(parts.values()), **{f"step_part/{name}": value for name, value in parts.items()}}


def test_the_parts_of_a_step_say_what_a_loser_lost() -> None:
    fastest = step("dp4", planted(compute=0.9, tp=0.1, bubble=0.0))
    of = contest(fastest, step("tp4", planted(compute=0.9, tp=0.32, bubble=0.07, imbalance=0.02)))
    assert told(of).lines[1][3:] == ("31 %", "", "22 points exposed communication along tp, 7.0 bubble")
    assert told(of).sentences[-1] == (
        "Points are hundredths of the fastest step, shared out as in one traced step of each case."
    )


def test_what_a_loser_does_better_is_said_where_it_is_much() -> None:
    of = contest(step("dp4", planted(0.9, 0.1, 0.0)), step("pp4", planted(0.6, 0.0, 0.7)))
    assert reasons(of)[1] == "70 points bubble, but 30 less compute"


def test_an_excess_spread_thin_is_no_reason() -> None:
    of = contest(step("dp4", planted(0.9, 0.1, 0.0)), step("tp4", planted(0.908, 0.105, 0.005)))
    assert reasons(of)[1] == "no part of the step is a point longer"


def test_without_parts_other_figures_are_given_as_what_they_are() -> None:
    fastest = step("dp4", {"tokens_per_s": 10, "exposed_communication": 0.010})
    piped = step("pp4", {"tokens_per_s": 8, "exposed_communication": 0.0305, "bubble/measured": 0.41})
    of = contest(fastest, piped)
    assert reasons(of)[1] == (
        "idle in the pipeline 41 % of a step, the fastest has no pipeline; exposed communication of a traced step 30.5 "
        "ms, of the fastest 10 ms"
    )
    assert "Exposed communication is that of one traced step, which takes longer than a timed one." in (
        told(of).sentences
    )


def test_where_nothing_was_measured_only_what_differs_is_said() -> None:
    of = contest(
        step("dp4", 10, micro_batch_size=2),
        step("dp2-tp2+sp+ep2+zero3", 9, micro_batch_size=1),
        step("dp4", 8, micro_batch_size=1),
    )
    assert reasons(of)[1:] == [
        "differs: DP 2 instead of 4, TP 2 instead of 1, EP 2 instead of 1, ZeRO 3 instead of 0, MBS 1 instead of 2, "
        "with SP",
        "differs: MBS 1 instead of 2",
    ]
    assert "Where it is not known what a step was spent on, the table says what differs." in told(of).sentences


# MFU


def test_an_mfu_says_how_it_is_counted() -> None:
    rows = trained("dp4", {"mfu/datasheet": 0.4, "mfu/measured": 0.5})
    assert mfus(only(rows)) == {Mfu("palm", "datasheet", ""): 0.4, Mfu("palm", "measured", ""): 0.5}
    assert min(mfus(only(rows)), key=lambda each: each.preference) == Mfu("palm", "datasheet", "")
    least, second, third = Mfu("palm", "datasheet", ""), Mfu("palm", "measured", ""), Mfu("causal", "datasheet", "")
    assert sorted([third, second, least], key=lambda each: each.preference) == [least, second, third]
    assert Mfu("palm_6n", "datasheet", "recomputed").words == (
        "palm_6n convention, peak of the datasheet, recomputed from tokens/s"
    )


def test_what_an_imported_mfu_chooses_stands_beside_the_fastest() -> None:
    rows = [*step("dp4", 900), *step("pp4", 800)]
    shares = [
        rows[0]._replace(metric="mfu", value=0.40, detail={"source": "imported"}),
        rows[1]._replace(metric="mfu", value=0.45, detail={"source": "imported"}),
    ]
    ratio = rows[1]._replace(metric="mfu_over_recomputed", value=1.2)
    of = contest([*rows, *shares, ratio])
    story = mfu_story("here", of.cases)
    assert story is not None
    assert story.sentences == (
        "The highest imported MFU, 45 %, is of pp4.",
        "By tokens/s the fastest is dp4.",
        "As imported it is 1.200 times the MFU that its tokens/s give.",
    )
    assert story.lines == (("1", "pp4", "45 %", "1.200", "800"), ("2", "dp4", "40 %", "", "900"))


# What somebody damaged


def test_a_hostile_case_is_cut_and_a_figure_that_is_no_number_is_none() -> None:
    of = contest(
        step("dp4", {"tokens_per_s": 10, "step_part/compute": float("nan")}),
        step("tp4", float("nan")),
        step("pp4", float("inf")),
        step("cp4", 0.0, micro_batch_size=["x"], gradient_accumulation_steps={"y": 1}),
        [row._replace(basis="<b>\x1b[31m" + "x" * 1_000_000) for row in step("dp2-tp2", status="failed")],
    )
    story = told(of)
    assert [line[2] for line in story.lines] == ["10", "", "", "", ""]
    assert {line[-1] for line in story.lines[1:-1]} == {"no figure"}
    assert story.lines[-1][-1].startswith("failed: <b>\ufffd[31mxxx")
    assert max(len(cell) for line in story.lines for cell in line) <= LONGEST_REASON
