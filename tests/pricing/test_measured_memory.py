"""Memory that a table has measured, beside what was priced."""

import csv
import io
import re

import pytest
from click.testing import CliRunner

from clusterbench.cli import main

HEADER = "model,seq,gpus,mbs,gbs,gpu,precision,zero,recompute"
ROW = "llama2-7b,4096,8,1,64,H100,bf16,3,none"


def price(tmp_path, column, *cells):
    file = tmp_path / "steps.csv"
    file.write_text("\n".join([f"{HEADER},{column}", *(f"{ROW},{cell}" for cell in cells)]) + "\n")
    done = CliRunner().invoke(main, ["price", str(file), "--profile", "fsdp2"])
    assert done.exit_code == 0, done.output
    return " ".join(done.stderr.replace("\n#", "").split()), list(csv.DictReader(io.StringIO(done.stdout)))


def priced_gb(tmp_path):
    return float(price(tmp_path, "note", "x")[1][0]["memory_gb"])


@pytest.mark.parametrize(
    ("column", "unit", "factor"),
    [
        ("Memory (GB)", "", 1.0),
        ("Memory (GiB)", "", 2**30 / 1e9),
        ("mem_gb", "GiB", 2**30 / 1e9),
        ("peak mem (MiB)", "", 2**20 / 1e9),
        ("Memory", "GB", 1.0),
        ("Peak reserved memory", "GiB", 2**30 / 1e9),
    ],
)
def test_the_unit_is_that_of_the_column_or_of_the_cell(tmp_path, column, unit, factor):
    held = priced_gb(tmp_path)
    said, (row,) = price(tmp_path, column, f"{held / factor:.2f} {unit}".strip())
    assert float(row["measured_memory_gb"]) == pytest.approx(held, rel=1e-2)
    assert float(row["memory_error"]) == pytest.approx(0, abs=0.01)
    kind = "reserved" if "reserved" in column else "of what kind is not said"
    assert f"measured memory ({kind}): 1 row; that of the fullest stage off by 0." in said


def test_rows_out_of_the_band_are_named_with_median_and_bias(tmp_path):
    held = priced_gb(tmp_path)
    cells = [f"{held * factor:.2f}" for factor in (1.0, 1.1, 2.0)]
    said, rows = price(tmp_path, "Peak reserved memory (GB)", *cells, "-")
    assert "measured memory (reserved): 3 rows" in said
    assert re.search(r"off by 9\.\d% \(median\), 19\.\d% \(mean\), bias -9\.\d%; 67% within 20%, not line 4\.", said)
    assert rows[3]["measured_memory_gb"] == rows[3]["memory_error"] == ""


def test_percent_is_of_the_cards_memory(tmp_path):
    said, (row,) = price(tmp_path, "Memory (%)", "50")
    assert float(row["measured_memory_gb"]) == pytest.approx(0.5 * 80 * 2**30 / 1e9, rel=1e-3)
    assert "measured memory (of the card): 1 row" in said


def test_rows_that_ran_out_of_memory_are_held_against_whether_they_fit(tmp_path):
    said, _ = price(tmp_path, "tokens/s/gpu", "OOM", "9000")
    assert "out of memory by their cells: 1 row; priced as 1 'fits'" in said


def test_rows_that_ran_and_do_not_fit_by_their_price_are_named(tmp_path):
    """A dp8 of llama-8b was 'measured' on 80 GB that it needs 173 of, and not a word: what ran was something else."""
    table = tmp_path / "steps.csv"
    row = "llama-8b,h100-sxm-80gb,8,{},4096,1,64,bf16,none,{}\n"
    head = "model,gpu,gpus,layout,seq,mbs,gbs,precision,recompute,step_s\n"
    table.write_text(head + row.format("dp8", 4) + row.format("dp8+zero3", 4) + row.format("dp8", "OOM"))
    said = " ".join(CliRunner().invoke(main, ["price", str(table)]).stderr.replace("#", "").split())
    what_ran = "their memory is less than priced, or another layout, micro-batch or recomputation ran"
    assert f"measured, and priced as 'does not fit': 1 row, line 2: {what_ran}" in said
