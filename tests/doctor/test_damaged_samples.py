"""Real output that was changed a little on its way says no more than it did: no invented fault, no traceback."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest

from clusterbench.doctor.logs import examine_logs
from clusterbench.errors import SuiteError
from tests.doctor.samples import FAULTY, HEALTHY, NOT_WHOLE, SAMPLES
from tests.share import some_of

pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")


DAMAGES: dict[str, Callable[[str], str]] = {
    "prefix": lambda text: "".join(f"Mar  2 14:10:00 cb17 python[7]: {line}\n" for line in text.splitlines()),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "mark of byte order": lambda text: f"\ufeff{text}",
}
NAMES = [*HEALTHY, *FAULTY, *NOT_WHOLE]
MAY_BE_CUT = {"gpu_lost", "gpu_count"}
"""They say themselves that the text may be cut."""


def counted(tmp_path, text):
    (tmp_path / "said.txt").write_text(text, newline="")
    examination, _ = examine_logs([tmp_path / "said.txt"])
    return {found.name for found in examination.found if found.counts}


@pytest.mark.parametrize(("name", "damage"), some_of([*product(NAMES, DAMAGES)], ", ".join))
def test_a_sample_says_the_same(tmp_path, name, damage):
    text = (SAMPLES / name).read_text(errors="replace")
    assert counted(tmp_path, DAMAGES[damage](text)) == counted(tmp_path, text)


@pytest.mark.parametrize("name", some_of(NAMES, str))
def test_lines_of_two_hosts_that_alternate_say_the_same_as_two_files(tmp_path, name):
    text = (SAMPLES / name).read_text(errors="replace")
    alternating = "".join(f"{host}: {line}\n" for line in text.splitlines() for host in ("cb01", "cb02"))
    for file in ("cb01", "cb02"):
        (tmp_path / file).write_text(text)
    examination, _ = examine_logs([tmp_path / "cb01", tmp_path / "cb02"])
    assert counted(tmp_path, alternating) == {found.name for found in examination.found if found.counts}


@pytest.mark.parametrize("name", some_of(NAMES, str))
def test_one_that_is_cut_invents_nothing_or_is_refused(tmp_path, name):
    text = (SAMPLES / name).read_text(errors="replace")
    lines = text.splitlines(keepends=True)
    whole = counted(tmp_path, text)
    for end in random.Random(name).sample(range(1, len(lines)), min(5, len(lines) - 1)):
        try:
            found = counted(tmp_path, "".join(lines[:end]))
        except SuiteError:
            continue
        assert found <= whole | MAY_BE_CUT, end
