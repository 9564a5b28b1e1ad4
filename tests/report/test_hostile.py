"""A run's folder that somebody wrote to hurt whoever opens its report: names and words of it stay words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from clusterbench.errors import ClusterbenchError
from clusterbench.report import render_report
from clusterbench.run_folder import RunFolder
from tests.test_security import INJECTED

EXAMPLES = sorted((Path(__file__).parents[2] / "reports" / "examples").iterdir())

HOSTILE = (
    "<script>document.title='taken'</script>",
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "\"><svg onload=document.title='taken'>",
    "' onmouseover=document.title='taken' x='",
    "--><b>bold</b><!--",
    "]]></title></style></textarea>",
    "{{ 7 * 7 }} {% include '/etc/passwd' %} ${7*7}",
    "$\\frac{1}{0}$ & &amp; &#60;",
    "\x00\x07\x1b[31mred\x1b[0m\x9f\ufeff\u202e\u2028\u2029\ufffe",
    "javascript:document.title='taken'",
    "../../../etc/passwd\n\r\t",
    "x" * 1_000_000,
)

FREE = ("id", "case", "source", "suite", "question", "cpu_name", "reason", "phase", "host", "log", "started", "basis")
"""Fields that hold words of a user or a machine."""


def hostile(value: Any, words: Iterator[str], key: str = "") -> Any:
    """The same record with other words in every free field, and for each host."""
    if isinstance(value, dict):
        return {name: hostile(inner, words, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner, words, key) for inner in value]
    return next(words) if isinstance(value, str) and (key in FREE or key == "hosts") else value


def keys_too(value: Any, words: Iterator[str]) -> Any:
    if isinstance(value, dict):
        return {f"{name} {next(words)[:200]}": keys_too(inner, words) for name, inner in value.items()}
    if isinstance(value, list):
        return [keys_too(inner, words) for inner in value]
    return next(words) if isinstance(value, str) else value


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Path], Path]:
    def make(example: Path) -> Path:
        path, words = tmp_path / "run <b>'&\"", cycle(HOSTILE)
        shutil.copytree(example, path)
        for name in ("plan.jsonl", "outcomes.jsonl", "observations.jsonl"):
            lines = [json.loads(line) for line in (path / name).read_text().splitlines()]
            (path / name).write_text("".join(json.dumps(hostile(line, words)) + "\n" for line in lines))
        environment = json.loads((path / "environment.json").read_text())
        (path / "environment.json").write_text(json.dumps(keys_too(environment, words)))
        (path / "index.html").unlink()
        return path

    return make


@pytest.mark.matrix
@pytest.mark.browser
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_word_of_a_hostile_run_stays_a_word(
    example: Path, folder: Callable[[Path], Path], visit: Callable[..., Page]
) -> None:
    path = folder(example)
    put_in = sum(file.stat().st_size for file in path.glob("*.json*"))
    page = render_report(RunFolder.open(path)).path
    assert page.stat().st_size < put_in  # words of a megabyte are not multiplied
    tab = visit(page.as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for line in tab.locator(".unfold").all()[:3]:
        line.click()
    assert tab.evaluate(INJECTED) == []
    assert tab.locator("main b").count() == 0
    assert tab.title() not in ("", "taken")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1280


def test_files_that_only_inform_may_be_missing(folder: Callable[[Path], Path]) -> None:
    path = folder(EXAMPLES[0])
    for name in ("environment.json", "rows.csv", "index.html"):
        (path / name).unlink(missing_ok=True)
        assert render_report(RunFolder.open(path)).path.exists()


@pytest.mark.parametrize("name", ["plan.jsonl", "outcomes.jsonl", "observations.jsonl"])
def test_without_one_of_its_records_a_folder_is_no_run(folder: Callable[[Path], Path], name: str) -> None:
    path = folder(EXAMPLES[0])
    (path / name).unlink()
    with pytest.raises(ClusterbenchError, match=re.escape(name)):
        RunFolder.open(path)
