from __future__ import annotations

from clusterbench.tools.deepep import parse_best
from tests.tools import printed


def version_2(ranks=8, **slow):
    """A line of each rank for dispatch and combine; ``slow`` is a rank's factor."""
    return "".join(
        f"   {mark} EP: {rank:3}/{ranks} | {phase}: 45 GB/s (SO), 160 GB/s (SU), "
        f"{us * slow.get(f'rank{rank}', 1):.3f} us, 58720256 bytes | {copy}: 2100 GB/s, 40.120 us\n"
        for mark, phase, us, copy in (("*", "dispatch", 366.1, "copy"), ("@", "combine", 702.4, "reduce"))
        for rank in range(ranks)
    )


SLOW = version_2(rank5=2.5)


def test_ranks_that_are_alike_are_in_order_and_their_rate_is_not_judged(examined):
    examination, kind = examined(version_2())
    assert (kind, examination.word, examination.found) == ("DeepEP's test", "NOT JUDGED", ())
    assert examination.healthy[0].what == "8 ranks take about as long in each of 2 phases"


def test_a_rank_that_takes_twice_as_long_is_found(examined):
    first, second = examined(SLOW)[0].found
    assert (first.where, first.what) == ("rank 5", "dispatch takes 915 us, the median rank 366 us")
    assert second.what.startswith("combine takes")
    assert first.evidence.startswith("said.txt:6: * EP:   5/8 | dispatch")


def test_a_check_that_failed_is_found(examined):
    (found,) = examined(version_2() + "[rank5]: AssertionError: ref_count=1, count=2\n")[0].found
    assert found.name == "wrong_result"


def test_the_best_of_version_1_with_its_time_behind_a_letter_is_read(examined):
    """``tests/legacy/test_intranode.py``."""
    said = "".join(
        f"[tuning] Best {part}: SMs 24, NVL chunk 4{mark} 331.77 GB/s (NVL), t: 936.50 us\n"
        for part, mark in (("dispatch (FP8)", ","), ("dispatch (BF16)", ","), ("combine", ":"))
    )
    examination, kind = examined(said)
    assert (kind, examination.word) == ("DeepEP's test", "NOT JUDGED")
    assert [best.time_s for best in parse_best(said)] == [936.5e-6] * 3


def test_version_1_is_read(examined):
    for text in (printed.DEEPEP_INTERNODE, printed.DEEPEP_LOW_LATENCY):
        examination, kind = examined(text)
        assert (kind, examination.word) == ("DeepEP's test", "NOT JUDGED")
