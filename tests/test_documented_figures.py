"""What documents say that a command printed, or is, is what it prints and is today."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main

ROOT = Path(__file__).parents[1]
PREDICTION = (ROOT / "docs" / "prediction.md").read_text(encoding="utf-8")
DRY_RUN = (ROOT / "docs" / "dry_run.md").read_text(encoding="utf-8")


def output(*words):
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def table(text, header):
    """The lines of a table, each as its cells."""
    (lines,) = re.findall(rf"^\| {re.escape(header)}.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines()]


def words_in(text):
    """What stands in backticks."""
    return re.findall("`([^`]+)`", text)


@pytest.mark.matrix
@pytest.mark.parametrize(("asked", "printed"), table(PREDICTION, "asked"))
def test_advice(asked, printed):
    shape, nics, *more = words_in(asked)
    sequences, num_nodes = re.search(r"([\d,]+) sequences, (?:to )?(\d+) nodes", asked).groups()
    of = ("--shape", shape, "--gpu", "h100-sxm-80gb", "--global-batch-size", sequences.replace(",", ""))
    said = output("advise", *of, "--num-nodes", num_nodes, "--nics", nics, *more)
    figures = [
        *re.findall(r"\d+,\d{3}", printed),
        *(f"{share}%" for share in re.findall(r"(\d+\.\d) %", printed)),
        *(f"{part} hold" for part in re.findall(r"\d of \d", printed)),
        *words_in(printed),
    ]
    assert [figure for figure in figures if figure not in said] == []


def test_the_memory_of_sharded_stages_and_of_a_dry_run_of_them(tmp_path):
    (said,) = re.findall(r"estimate \((.*?)\)", " ".join(PREDICTION.split()))
    priced, held = re.findall(r"\d+\.\d GB", said)
    steps = tmp_path / "steps.csv"
    steps.write_text("model,layout,seq,gpus,mbs,gbs,gpu\nllama-8b,pp2-dp8+zero3,4096,16,1,16,h100-sxm-80gb\n")
    (cell,) = re.findall(r",(\d+\.\d+),fits,", output("price", str(steps), "--nics", "8x400Gb"))
    assert f"{float(cell):.1f}" == priced.split()[0]
    assert f" needs {held}. " in output("dry-run", "pp2-dp8+zero3", "--shape", "llama-8b", "--rank", "0")


def test_prices_of_cpu_ranks_before_and_after_a_calibration(tmp_path):
    run, rates = str(ROOT / "reports" / "examples" / "layouts_5d-cpu"), str(tmp_path / "rates.yaml")
    output("calibrate", run, "--out", rates)
    printed = [" ".join(output("price", run, *more).split()) for more in ((), ("--rates", rates))]
    medians = [re.search(r"off by (\d+\.\d)% \(median\)", said)[1] for said in printed]
    places = [re.search(r"Spearman (\d\.\d+)", said)[1] for said in printed]
    (widened,) = re.findall(r"lie of a price with the right rates: (\d\.\d+)", Path(rates).read_text())
    words = " ".join(PREDICTION.split())
    assert f"the median error is {medians[0]} % before and {medians[1]} % after a calibration" in words
    assert f"by the same run, Spearman {places[0]} and {places[1]}." in words
    assert f"those of `layouts_5d-cpu` are, by a factor of {float(widened):.2f}." in words


@pytest.mark.matrix
@pytest.mark.parametrize(("asked", "at_most", "activations"), table(DRY_RUN, "layout of llama-8b"))
def test_dry_runs(asked, at_most, activations):
    layout, *more = words_in(asked)
    rank = re.search(r"rank (\d+)", asked)
    said = output("dry-run", layout, "--shape", "llama-8b", *" ".join(more).split(), "--rank", rank[1] if rank else "0")
    (whole,) = re.findall(r": (\d+\.\d+) GB at most", said)
    (part,) = re.findall(r"^  activations +(\d+\.\d+) ", said, re.MULTILINE)[:1]
    digits = len(at_most.split()[0].partition(".")[2])
    assert f"{float(whole):.{digits}f} GB" == at_most
    assert f"{float(part):.2f} GB" == activations


ROOMS = table(DRY_RUN, "layout | llama-1b")
FORMULAS = [
    pytest.param(*words_in(layout), shape, cell, id=f"{words_in(layout)[0]}-{shape}")
    for layout, *cells in ROOMS
    for shape, cell in zip(("llama-1b", "llama-8b", "llama-70b"), cells, strict=True)
]


def at_most_by_formula(said):
    """The figure of the first stage, or of all ranks, and the word of each size of card."""
    (figure,) = re.findall(r"^  (?:any rank|first stage) (?: +\S+){4} +(\S+) ", said, re.MULTILINE)
    return float(figure.replace(",", "")), re.findall(r"^# (\d+ GB): (fits|close|does not fit)", said, re.MULTILINE)


@pytest.mark.parametrize(("layout", "shape", "cell"), FORMULAS)
def test_memory_by_formula(layout, shape, cell):
    num_nodes = {"pp4-tp8+sp": "4", "dp8-tp8+sp+zero3": "8"}.get(layout, "1")
    held, cards = at_most_by_formula(output("layout", layout, "--shape", shape, "--num-nodes", num_nodes))
    room = next(
        (f"{'from' if word == 'fits' else 'close on'} {card}" for card, word in cards if word != "does not fit"),
        "on none",
    )
    figure, said = cell.split(" GB: ")
    assert (float(figure.replace(",", "")), said) == (held, room)


def test_formulas_of_the_dry_runs():
    (said,) = re.findall(r"The formulas say (.*?) GB of the three", " ".join(DRY_RUN.split()))
    batch = ("--shape", "llama-8b", "--global-batch-size")
    asked = (("tp1", *batch, "1"), ("tp1", *batch, "1"), ("dp128-tp8+sp+zero3", "--num-nodes", "128", *batch, "128"))
    held = [at_most_by_formula(output("layout", *words))[0] for words in asked]
    assert [float(figure) for figure in re.findall(r"\d+\.\d+", said)] == pytest.approx(held, rel=0.003)


def test_the_share_of_planted_defects():
    (share,) = re.findall(r"tests\.mutants --share (\S+)", (ROOT / "tox.ini").read_text(encoding="utf-8"))
    said = " ".join((ROOT / "docs" / "proof.md").read_text(encoding="utf-8").split())
    assert f"The test command plants {share} of them" in said
