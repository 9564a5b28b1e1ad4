"""``advise --page``: the heatmap of a cluster one does not have, and that nothing of it was measured."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main

ROOT = Path(__file__).parents[2]
CARD = ("--gpu", "h100-sxm-80gb", "--seq-len", "4096", "--global-batch-size", "256", "--profile", "nanotron")
PLAYBOOK = ("playbook-1b", "playbook-3b", "playbook-8b", "playbook-80b")


def run(*arguments):
    return CliRunner().invoke(main, ("advise", *arguments), catch_exceptions=False)


def asked(*shapes):
    return [word for shape in shapes for word in ("--shape", shape)]


def lines(page):
    """The cells of the table, line by line."""
    return [re.findall("<td>(.*?)</td>", line) for line in re.findall("<tr><td>.*?</tr>", page, re.DOTALL)]


def test_each_cell_is_the_first_of_what_the_terminal_ranks(tmp_path):
    page = tmp_path / "heatmap.html"
    said = run(
        *asked("playbook-1b", "playbook-8b"), *CARD, "--num-nodes", "2", "--nics", "8x400Gb", "--page", str(page)
    )
    assert said.exit_code == 0
    table = lines(page.read_text())
    assert [line[:3] for line in table] == [
        [shape, nodes, gpus] for shape in ("playbook-1b", "playbook-8b") for nodes, gpus in (("1", "8"), ("2", "16"))
    ]
    first = re.findall(r"\n +(\S+) +([0-9]+) +none +([0-9,]+) .* fastest", said.stdout)
    for line, (layout, micro_batch, per_gpu) in zip(table[1::2], first, strict=True):
        assert line[3] == f"{layout}, micro-batch {micro_batch}"
        speed, low, high = (float(cell.removesuffix(" tokens/s").replace(",", "")) for cell in line[4:7])
        assert speed / 16 == pytest.approx(float(per_gpu.replace(",", "")), abs=1)
        assert low < speed < high


def test_page_and_terminal_say_that_nothing_was_measured_and_by_which_rates(tmp_path):
    page = tmp_path / "heatmap.html"
    said = run(*asked("playbook-1b"), *CARD, "--num-nodes", "2", "--nics", "8x400Gb", "--page", str(page))
    assert f"{page}: the fastest layouts as predicted; nothing on it was measured" in " ".join(
        said.stdout.replace("\n#", "").split()
    )
    text = page.read_text()
    assert "Every figure on this page is worked out. No step of it was run." in text
    assert "NOT MEASURED: datasheet of h100-sxm-80gb x typical." in text
    assert "prices are of the profile &#39;nanotron&#39;, which &#39;clusterbench list profiles&#39; explains" in text
    assert "NICs of a node, as --nics says: 8x400Gb" in text
    assert "NICs of a node, as --nics says: 8x400Gb" in said.stdout
    assert "src=" not in text
    assert "href=" not in text.replace('href="#', "")


def test_the_page_says_what_is_close_to_the_card_and_what_is_as_fast(tmp_path):
    """The terminal warned that the first needs 75.0 of 80 GB and that two others are as fast, the page of neither."""
    page = tmp_path / "heatmap.html"
    question = ("--shape", "llama-8b", "--gpu", "h100-sxm-80gb", "--tokens", "2^21")
    said = run(*question, "--page", str(page)).stdout
    first = re.search(r"\n +(\S+) .* close, measure it  fastest ", said)
    others = re.findall(r"\n +(\S+) .*  as fast ", said)
    ((*_, room, alike, _, unheld),) = lines(page.read_text())
    assert (first[1], others, room) == ("dp8+zero3", ["dp4-cp2+zero3", "dp2-cp4+zero3"], "close, measure it")
    assert alike == "dp4-cp2+zero3, micro-batch 4; dp2-cp4+zero3, micro-batch 8"
    assert unheld == "ZeRO-3"


def test_the_page_explains_the_words_of_its_cells(tmp_path):
    page = tmp_path / "heatmap.html"
    run(*asked("playbook-1b"), *CARD, "--num-nodes", "1", "--page", str(page))
    words = re.findall("<dt>(.*?)</dt>", page.read_text().partition("Words in this page")[2])
    assert {"DP", "MBS", "GAS", "MFU"} <= set(words)


def test_without_a_network_there_is_a_heatmap_for_each(tmp_path):
    page = tmp_path / "heatmap.html"
    run(*asked("playbook-1b"), *CARD, "--num-nodes", "2", "--page", str(page))
    assert re.findall("If the NICs of a node are (.*?):", page.read_text()) == ["8x400Gb", "8x100Gb"]


def test_one_cell_is_no_larger_than_its_letters_ask_for(tmp_path):
    """It was as wide as the page, 800 pixels of 284 points, with letters nearly three times those of the text."""
    page = tmp_path / "heatmap.html"
    run(*asked("playbook-1b"), *CARD, "--page", str(page))
    html = page.read_text()
    (drawn,) = re.findall(r'<svg [^>]*viewBox="0 0 ([0-9.]+)', html)
    (said,) = re.findall(r'<figure class="heatmap" style="--width: ([0-9]+)">', html)
    assert int(said) == round(float(drawn))
    assert re.search(r"\.heatmap svg {[^}]*max-width: min\(50rem, calc\(var\(--width\) \* 1\.4px\)\)", html)


def test_where_nothing_fits_a_cell_says_so(tmp_path):
    page = tmp_path / "heatmap.html"
    run(*asked("playbook-80b"), *CARD, "--num-nodes", "2", "--nics", "8x400Gb", "--page", str(page))
    assert [line[3] for line in lines(page.read_text())] == ["none of 16 forms fits", "none of 25 forms fits"]


def test_where_no_layout_is_legal_a_cell_says_so(tmp_path):
    """One sequence cannot be shared among three GPUs: there was no page, and a KeyError."""
    page = tmp_path / "heatmap.html"
    cluster = ("--gpu", "h100-sxm-80gb", "--gpus-per-node", "1", "--num-nodes", "3", "--nics", "1x400Gb")
    said = run(*asked("playbook-1b"), *cluster, "--global-batch-size", "1", "--page", str(page))
    assert said.exit_code == 0
    assert [line[1:4] for line in lines(page.read_text())][-1] == ["3", "3", "no layout is legal"]


def test_two_models_of_one_name_are_refused(tmp_path):
    """Of two files called x.json the page had one row, with the figures of the second."""
    numbers = "{num_layers: 2, hidden_size: %d, ffn_hidden_size: 256, num_heads: 4, vocab_size: 512}"
    paths = [tmp_path / folder / "x.yaml" for folder in ("a", "b")]
    for path, width in zip(paths, (128, 256), strict=True):
        path.parent.mkdir()
        path.write_text(numbers % width)
    page = tmp_path / "heatmap.html"
    said = run(*asked(*map(str, paths)), *CARD, "--page", str(page))
    assert said.exit_code == 2
    assert f"--shape {paths[1]}: the shape 'x' has other numbers in {paths[0]}, and a page tells" in said.output
    assert not page.exists()


def test_a_suite_is_that_of_one_model(tmp_path):
    said = run(*asked("playbook-1b", "playbook-3b"), *CARD, "--out", str(tmp_path / "s.yaml"))
    assert said.exit_code == 2
    assert "s.yaml is the suite of one model, and --shape is given 2 times." in said.output


def test_a_page_that_cannot_be_written_is_said(tmp_path):
    said = run(*asked("playbook-1b"), *CARD, "--page", str(tmp_path / "no" / "heatmap.html"))
    assert said.exit_code == 2
    assert "--page" in said.output
    assert "cannot be written: No such file or directory." in said.output


def test_the_page_of_the_playbook_is_of_today(tmp_path):
    """docs/prediction.md has the command."""
    page = tmp_path / "playbook.html"
    run(*asked(*PLAYBOOK), *CARD, "--num-nodes", "64", "--nics", "8x400Gb", "--page", str(page))
    assert page.read_text() == (ROOT / "reports" / "predicted" / "playbook.html").read_text()
