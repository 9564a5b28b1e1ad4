from __future__ import annotations

import pytest

from tests.tools import printed

NO_DRIVER = """\
GPU id:0; name: Some GPU; Bus id: 0000:01:00
selecting device 0
gdr_open error: Is gdrdrv driver installed and loaded?
"""


ENDED = [
    printed.COPYBW,
    f"{printed.COPYBW[:45]}{printed.COPYLAT}",
    printed.COPYLAT_MEDIANS,
    f"{printed.COPYBW[:45]}{printed.PPLAT_MEDIAN}",
]


@pytest.mark.parametrize("text", ENDED)
def test_a_program_that_ended_shows_that_the_driver_works_and_no_rate(examined, text):
    examination, kind = examined(text)
    assert (kind, examination.word, examination.found) == ("gdrcopy", "NOT JUDGED", ())
    assert examination.healthy[0].what.endswith(" ran without an error: GPU memory can be mapped")
    assert examination.not_judged[0].name == "gdrcopy_rate"


def test_a_driver_that_is_not_loaded_is_found(examined):
    (found,) = examined(NO_DRIVER)[0].found
    assert (found.name, found.severity) == ("gdrdrv", "warning")
    assert found.evidence == "said.txt:3: gdr_open error: Is gdrdrv driver installed and loaded?"


def test_a_text_that_is_cut_is_not_judged(examined):
    examination, _ = examined(printed.COPYBW[:220])
    assert (examination.healthy, examination.word) == ((), "NOT JUDGED")


def test_an_error_in_a_real_text_is_found(examined, sample):
    text = sample("gdrcopy_copybw_v100.txt").replace("testing size", "gdr_open error: no such device\ntesting size")
    assert [found.name for found in examined(text)[0].found] == ["gdrdrv"]


SANITY = "Total: 28, Passed: {passed}, Failed: {failed}, Waived: 2\n\n"


def test_tests_of_gdrcopy_that_failed_are_found(examined):
    """NVIDIA/gdrcopy, issues 324 and 279: ``gdrcopy_sanity``."""
    said = SANITY.format(passed=24, failed=2) + "List of failed tests:\n    basic_with_tokens\n    basic_cumemalloc\n"
    examination, kind = examined(f"# gdrcopy_sanity\n{said}\nList of waived tests:\n    invalidation\n")
    (found,) = examination.found
    assert (kind, found.name, found.severity) == ("gdrcopy", "gdrdrv", "warning")
    assert found.what == "2 tests of gdrcopy_sanity failed: basic_with_tokens, basic_cumemalloc"


def test_data_that_gdrcopy_read_back_wrong_is_an_error(examined):
    said = "&&&& FAILED data_validation_cumemalloc\n" + SANITY.format(passed=25, failed=1)
    examination, _ = examined(said + "List of failed tests:\n    data_validation_cumemalloc\n")
    assert [(found.name, found.severity) for found in examination.found] == [("gdrdrv", "error")]


def test_tests_of_gdrcopy_that_passed_are_in_order(examined):
    examination, kind = examined(SANITY.format(passed=26, failed=0).strip())
    assert (kind, examination.word) == ("gdrcopy", "HEALTHY")
