"""How the numbers of ``tests/bench`` are judged; that they are reached is measured by ``tox -e bench``, never here."""

from clusterbench.derive import read
from clusterbench.types import VOID
from tests import by_hand
from tests.bench import alternate, at_most, control_plane, ratio, report_size

STEADY = [1.0, 1.001, 0.999] * 20
NOISY = [0.7 + 0.01 * number for number in range(60)]


def times(factor, samples):
    return [factor * sample for sample in samples]


def test_a_ratio_below_its_target_is_within():
    assert ratio("a", times(1.02, STEADY), STEADY, STEADY, 1.03).verdict == "within"


def test_a_ratio_above_its_target_is_missed():
    result = ratio("a", times(1.05, STEADY), STEADY, STEADY, 1.03)
    assert result.verdict == "missed"
    assert round(result.value, 3) == 1.05


def test_a_control_wider_than_the_margin_leaves_the_result_undecided():
    assert ratio("a", times(0.9, NOISY), NOISY, NOISY, 1.03).verdict == "undecided"


def test_a_control_that_is_narrow_but_off_leaves_the_result_undecided():
    assert ratio("a", STEADY, STEADY, times(1.05, STEADY), 1.03).verdict == "undecided"


def test_noise_does_not_excuse_what_it_cannot_explain():
    assert ratio("a", times(4, NOISY), NOISY, NOISY, 1.03).verdict == "missed"


def test_a_value_at_its_target_is_within():
    assert [at_most("a", value, "s", 2.0).verdict for value in (2.0, 2.1)] == ["within", "missed"]


def test_contenders_take_turns_in_every_order():
    calls = []
    seen = alternate(6, {name: lambda name=name: calls.append(name) or len(calls) for name in "abc"})
    assert {tuple(calls[turn : turn + 3]) for turn in range(0, 18, 3)} == {
        ("a", "b", "c"),
        ("a", "c", "b"),
        ("b", "a", "c"),
        ("b", "c", "a"),
        ("c", "a", "b"),
        ("c", "b", "a"),
    }
    assert [len(numbers) for numbers in seen.values()] == [6, 6, 6]


def test_a_race_that_is_over_ends_when_all_orders_have_come_alike():
    asked = []
    seen = alternate(100, {"a": int, "b": int}, lambda done: asked.append(done) or done == 4)
    assert asked == [2, 4]
    assert [len(numbers) for numbers in seen.values()] == [4, 4]


def test_a_race_says_how_far_it_is_and_is_over_at_its_limit(capsys, monkeypatch):
    monkeypatch.setattr(by_hand.time, "monotonic", lambda: 151.0)
    monkeypatch.setattr(by_hand.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(by_hand.dist, "broadcast", lambda tensor, rank: None)
    assert by_hand._is_over("tp2", 160, 150, [0.0, 0.0], 60)
    assert capsys.readouterr().err == "\ntp2: 60 of 160 rounds, 151 s "
    assert not by_hand._is_over("tp2", 160, 150, [100.0, 145.0], 60)
    assert capsys.readouterr().err == ""


def test_of_the_training_steps_whose_page_is_timed_every_record_is_read(tmp_path):
    cases = report_size.training_cases(40)
    reading = read(report_size.write(tmp_path / "run", cases, report_size.training_records(cases)))
    assert reading.problems == ()
    assert all(history.pooled for history in reading.histories)
    assert not [row for row in reading.rows if row.basis.startswith(VOID)]


def test_agents_of_the_control_plane_say_what_a_host_says():
    assert {"hostname", "num_cores", "facts"} <= set(control_plane._environment())
