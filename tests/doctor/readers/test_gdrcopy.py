from __future__ import annotations

import pytest

from tests.tools import printed

NO_DRIVER = """\
GPU id:0; name: Some GPU; Bus id: 0000:01:00
selecting device 0
gdr_open error: Is gdrdrv driver installed and loaded?
"""


@pytest.mark.parametrize("text", [printed.COPYBW, f"{printed.COPYBW[:45]}{printed.COPYLAT}"])
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
