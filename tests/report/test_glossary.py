"""No abbreviation in a page that the page does not explain."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path

import pytest

from clusterbench.benchmarks import benchmarks
from clusterbench.charts import CAPTION, charts
from clusterbench.diagnoses import diagnoses
from clusterbench.report import render_report
from clusterbench.report.glossary import explainer, figures_in, glossary, words_in
from clusterbench.run_folder import RunFolder
from clusterbench.words import sections
from tests.report.synthetic import all_reduce_run, case, plant, row, tp_scale_run

NAMES = """
NVIDIA AMD EPYC PyTorch JavaScript InfiniBand GeForce DeepSpeed FlashAttention
COMPLETE INCOMPLETE WRONG IMPORTED PROVEN NOT HEALTHY SUSPECT JUDGED NOTHING MEASURED CSV SVG PNG OK GNU README PATH
POWER TEMPERATURE PERFORMANCE
"""
"""Of firms, programs and files, and what is typed into a command line: short for nothing that one would look up."""

_ABBREVIATION = re.compile(r"(?<![\w.])(?:[A-Z][A-Za-z]*[A-Z][A-Za-z0-9]*|[a-z]+[A-Z]{2,}\w*|\d[A-Z]\d[A-Z])(?![\w(])")


@pytest.fixture
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def visible(page: str) -> str:
    """What a reader sees of a page; monospaced text is names of files and hosts."""
    page = re.sub(r"<(style|script|code)\b.*?</\1>|<span class=\"path\">.*?</span>", " ", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", page))


def unexplained(text: str) -> set[str]:
    tokens = re.findall(r"[A-Za-z0-9]+", text)
    explained = {
        token for word in words_in("", glossary(benchmarks()), [text]) for token in tokens if word.is_among({token})
    }
    found = {word for word in _ABBREVIATION.findall(text) if not {word, word.removesuffix("s")} & explained}
    return found - {*NAMES.split()} - _variables(text)


def _variables(text: str) -> set[str]:
    """Names of environment variables, such as OMP_NUM_THREADS."""
    return set(re.findall(r"\b[A-Z0-9]+(?:_[A-Z0-9]+)+\b", text))


@pytest.mark.usefixtures("_planted")
@pytest.mark.parametrize("make", [tp_scale_run, all_reduce_run])
def test_a_page_explains_every_abbreviation_in_it(make: Callable[[Path], RunFolder], tmp_path: Path) -> None:
    page = render_report(make(tmp_path / "run")).path.read_text()
    assert unexplained(visible(page)) == set()


def test_the_parts_of_a_step_are_words_of_a_page_that_draws_them() -> None:
    named = {word.name for word in words_in("<text>exposed tp</text><text>bubble, imbalance</text>", glossary())}
    assert {"exposed", "bubble", "imbalance"} <= named
    assert "exposed" not in {word.name for word in words_in("<text>busbw</text>", glossary())}


@pytest.mark.parametrize("name", sorted(charts()))
def test_captions_have_no_word_that_the_glossary_lacks(name: str) -> None:
    kind = charts()[name]
    assert unexplained(f"{kind.title} {sections(kind)[CAPTION]}") == set()


@pytest.mark.parametrize("name", sorted(diagnoses()))
def test_advice_has_no_word_that_the_glossary_lacks(name: str) -> None:
    assert unexplained(" ".join(sections(diagnoses()[name]).values())) == set()


@pytest.mark.parametrize("name", sorted(benchmarks()))
def test_meanings_of_metrics_have_no_word_that_the_glossary_lacks(name: str) -> None:
    assert unexplained(" ".join(kind.meaning for kind in benchmarks()[name].metrics)) == set()


@pytest.mark.usefixtures("_planted")
def test_a_page_lists_the_words_it_uses_and_no_other(tmp_path: Path) -> None:
    page = render_report(tp_scale_run(tmp_path / "run")).path.read_text()
    assert '<div id="word-tp"><dt>TP</dt>' in page
    assert '<div id="word-gib-mib-kib"><dt>GiB, MiB, KiB</dt>' in page
    assert "word-rdma" not in page


@pytest.mark.usefixtures("_planted")
def test_every_link_of_a_page_leads_somewhere(tmp_path: Path) -> None:
    page = render_report(tp_scale_run(tmp_path / "run")).path.read_text()
    anchors = set(re.findall(r'\bid="([^"]+)"', page))
    links = {link for link in re.findall(r'href="#([^"]*)"', page) if not link.startswith("case=")}
    assert links <= anchors


def test_a_word_is_linked_where_it_is_first_used() -> None:
    explained = explainer(glossary())
    first = explained("MFU & busbw < MFUs")
    assert re.sub(r' title="[^"]*"', "", first) == (
        '<a class="word" href="#word-mfu">MFU</a> &amp; <a class="word" href="#word-busbw">busbw</a> &lt; MFUs'
    )
    assert explained("MFU") == "MFU"


@pytest.mark.parametrize(("rate", "gbit"), [("EDR", 100), ("HDR", 200), ("NDR", 400), ("XDR", 800)])
def test_each_rate_of_infiniband_is_told(rate: str, gbit: int) -> None:
    """A page with XDR alone had an entry for NDR, which did not name it."""
    (word,) = words_in(f"<td>{rate}</td>", glossary())
    told = word.meaning if rate == word.name else word.meaning.partition(rate)[2]
    assert re.search(r"\d+", told)[0] == str(gbit)  # type: ignore[index]


def test_words_have_names_of_their_own() -> None:
    anchors = [word.anchor for word in glossary(benchmarks())]
    assert len(set(anchors)) == len(anchors)
    assert all(word.meaning.endswith(".") for word in glossary(benchmarks()))


@pytest.mark.parametrize(("found", "named"), [(benchmarks, "STREAM"), (charts, "PIX"), (diagnoses, "ACS")])
def test_a_benchmark_a_chart_and_a_diagnosis_bring_their_own_words(
    found: Callable[[], dict[str, type]], named: str
) -> None:
    brought = [word for kind in found().values() for word in kind.glossary]
    assert named in {word.name for word in brought}
    assert {*brought} <= {*glossary(benchmarks())}


def test_a_page_loads_no_benchmark_that_it_is_not_about() -> None:
    program = (
        "from clusterbench.report.glossary import glossary\nglossary(['train_step'])\n"
        "import sys; sys.exit('clusterbench.benchmarks.nccl_transport' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_metric_is_explained_as_its_benchmark_does() -> None:
    one = case("a", benchmark="train_step")
    gone = case("b", benchmark="gone")
    rows = {metric: [row(of, metric) for of in (gone, one)] for metric in ("mfu", "no_such_metric", "busbw")}
    assert list(figures_in(rows)) == [("mfu", "model FLOP/s over the peak; by each convention of what is counted")]
