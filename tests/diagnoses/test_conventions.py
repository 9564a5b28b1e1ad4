import pytest

from clusterbench.diagnoses import HEADINGS, Diagnosis, diagnoses
from clusterbench.words import sections
from tests.report.synthetic import reading


@pytest.mark.parametrize("kind", diagnoses().values(), ids=diagnoses())
def test_the_docstring_has_the_four_headings(kind: type[Diagnosis]) -> None:
    assert tuple(sections(kind)) == HEADINGS
    assert all(sections(kind).values())


@pytest.mark.parametrize("kind", diagnoses().values(), ids=diagnoses())
def test_a_run_without_a_case_is_silent(kind: type[Diagnosis]) -> None:
    assert kind().findings(reading(cases=[])) == []
