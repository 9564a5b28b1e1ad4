"""Tables as different authors publish them; values of models are invented where no publication is named."""

import pytest

from clusterbench.errors import SuiteError
from clusterbench.pricing.table import read_steps

HEADER = "model,seq,gpus,mbs,gbs,recompute,tokens/s/gpu,mem_gb"
ROW = "llama2-7b,4096,8,1,64,none,{},{}"


def written(tmp_path, text, encoding="utf-8"):
    file = tmp_path / "steps.csv"
    file.write_text(text, encoding=encoding)
    return read_steps(file, 8)


def told(table, word):
    return [words for words in table.defaults if word in words]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_may_be_parted_by_commas_semicolons_and_tabs(tmp_path, separator):
    text = f"{HEADER}\n{ROW.format(9000, 40)}\n".replace(",", separator)
    (row,) = written(tmp_path, text, "utf-8-sig").rows
    assert (row.model, row.memory_gb, row.priced.job.layout.world_size) == ("llama2-7b", 40, 8)


def test_excels_line_before_the_header_names_the_separator(tmp_path):
    (row,) = written(tmp_path, f"sep=;\n{HEADER}\n{ROW.format(9000, 40)}\n".replace(",", ";")).rows
    assert (row.line, row.memory_gb) == (3, 40)


def test_commas_of_fractions_are_read_and_a_point_that_may_part_thousands_then_is_not(tmp_path):
    text = f"{HEADER}\n{ROW}\n{ROW}\n{ROW}\n".replace(",", ";").format(
        "1.234,5", "61,2", "9 180", "55,0", "1.180", "40"
    )
    first, second, third = written(tmp_path, text).rows
    assert first.memory_gb == 61.2
    assert first.step_s == pytest.approx(64 * 4096 / 8 / 1234.5)
    assert second.step_s == pytest.approx(64 * 4096 / 8 / 9180)
    assert third.reason == (
        "tokens_per_s_per_gpu is '1.180', which may be 1180 or 1.180: elsewhere in the table a comma parts fractions"
    )


@pytest.mark.parametrize("mark", ["*", "†", " ²", "[^1]", "[1]", "**"])
def test_marks_of_footnotes_are_left_out_and_that_is_said(tmp_path, mark):
    table = written(tmp_path, f"{HEADER}\n{ROW.format(f'9000{mark}', 40)}\n")
    assert table.rows[0].step_s == pytest.approx(64 * 4096 / 8 / 9000)
    assert told(table, "footnotes") == [f"marks of footnotes are left out, as of '9000{mark}' in line 2: 1 cell"]


def test_units_may_stand_in_cells(tmp_path):
    rows = [ROW.format("9.0k", "40GB"), ROW.format("9000 tokens/s/GPU", "40 GiB"), ROW.format("9000 GB", "40")]
    first, second, third = written(tmp_path, "\n".join([HEADER, *rows]) + "\n").rows
    assert first.step_s == second.step_s == pytest.approx(64 * 4096 / 8 / 9000)
    assert (first.memory_gb, second.memory_gb) == (40, 40 * 2**30 / 1e9)
    assert third.reason == "tokens_per_s_per_gpu is '9000 GB', and must be a number"


TITAN = """\
Model | GPUs | GPU | Context length | MBS | GBS | Act ckpt | tokens/s/GPU | MFU
--- | --- | --- | --- | --- | --- | --- | --- | ---
Llama 2 13B | 64 | A100-80GB | 4096 | 2 | 128 | no | **2,162** | 61.1%
Llama 2 13B | 64 | A100-80GB | 4096 | 2 | 128 | selective layer | 1,914 | 54.1%
Llama 2 70B | 64 | A100-80GB | 4096 | 2 | 128 | selective op | OOM | OOM
Llama 2 70B | 64 | A100-80GB | 4096 | 1[^1] | 64 | selective op | 355 | 50.8%
"""
"""pytorch/torchtitan, docs/performance.md (2024): figures as published, columns as they are named elsewhere."""


def test_a_table_of_markdown_needs_no_bars_around_it(tmp_path):
    table = written(tmp_path, TITAN)
    first, of_layers, crashed, marked = table.rows
    assert first.step_s == pytest.approx(128 * 4096 / 64 / 2162)
    assert first.mfu == pytest.approx(0.611)
    assert of_layers.reason == (
        "checkpointing is 'selective layer', and prices are of none, selective and full: of every layer, not of some"
    )
    assert crashed.out_of_memory
    assert crashed.step_s is None
    assert (marked.priced.recompute, marked.priced.job.micro_batch_size) == ("selective", 1)


def test_a_row_of_another_width_costs_itself_and_empty_cells_at_its_end_nothing(tmp_path):
    rows = [ROW.format(9000, 40), f"{ROW.format(9000, 40)},,", "llama2-7b,4096", f"{ROW.format(9000, 40)},x"]
    read = written(tmp_path, "\n".join([HEADER, *rows]) + "\n").rows
    assert [row.reason for row in read] == [
        "",
        "",
        "the row has 2 cells and the header 8",
        "the row has 9 cells and the header 8",
    ]


def test_how_many_gpus_a_node_has_is_said_where_nobody_did(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text(f"{HEADER},gpu\n{ROW.format(1, 1)},GH200\n{ROW.format(1, 1)},\n".replace(",1,1,", ",-,-,"))
    assert told(read_steps(file, None), "gpus_per_node") == [
        "gpus_per_node is not said: 1 taken, as in the usual server of gh200-96gb: 1 of 2 rows",
        "gpus_per_node is not said: 8 taken: 1 of 2 rows",
    ]
    assert told(read_steps(file, 8), "gpus_per_node") == []
    file.write_text(f'{HEADER},gpu\n{ROW.format("-", "-")},"H200-141GB (4/node, IB)"\n')
    table = read_steps(file, None)
    assert table.rows[0].priced.ranks_per_node == 4
    assert told(table, "gpus_per_node") == [
        "gpus_per_node is not said: 4, as 'H200-141GB (4/node, IB)' says: 1 of 1 rows"
    ]


def test_numbers_may_have_all_digits_of_a_spreadsheet(tmp_path):
    table = written(tmp_path, f"{HEADER},mfu\n{ROW.format(9000, 40)},0.5379999999999999\n")
    assert table.rows[0].mfu == pytest.approx(0.538)


def test_a_cell_that_cannot_be_read_is_no_mistake_of_the_others(tmp_path):
    rows = [ROW.format("~9000", 40), ROW.format(9000, 40), ROW.format(9000, "much")]
    read = written(tmp_path, "\n".join([HEADER, *rows]) + "\n").rows
    assert [row.reason for row in read] == [
        "tokens_per_s_per_gpu is '~9000', and must be a number: write 9000 if it is near enough",
        "",
        "mem_gb is 'much', and must be a number",
    ]
    with pytest.raises(SuiteError, match=r"steps.csv:2: tokens_per_s_per_gpu is '~9000'"):
        written(tmp_path, f"{HEADER}\n{rows[0]}\n{rows[2]}\n")
