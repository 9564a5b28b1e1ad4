"""Other tools' files become runs; the sweep of the Ultra-Scale Playbook is the proof."""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.benchmarks.imported import Imported
from clusterbench.cases import Reading
from clusterbench.cases.trained import Trained
from clusterbench.charts.top_config import TopConfig, best, imported_mfu, mfu_ratios, moved_by_mfu, throughput
from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.compare import compare_runs
from clusterbench.derive import read
from clusterbench.errors import SuiteError
from clusterbench.importing import Facts, import_files
from clusterbench.importing.mapping import read_mapping
from clusterbench.importing.outputs import outputs
from clusterbench.layout import RIDERS
from clusterbench.report import circumstances, render_report
from clusterbench.rows import Row
from clusterbench.types import Place
from tests.doctor.test_prefixes import PREFIXES

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
SAMPLES, DATA = SHARED / "samples", SHARED / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared absent")

HEADER = ["model", "pp", "dp", "tp", "mbs", "acc", "gpus", "tok_s", "mem", "end"]
MAPPING = """\
import: mine
question: Which is fastest?
source: a spreadsheet
gpu: NVIDIA H100 80GB HBM3
gpus_per_node: 8
status:
  column: end
  equals: {done: ok}
  contains: {memory: out_of_memory, hang: timeout}
case:
  shape: model
  world_size: gpus
  pp: pp
  dp: dp
  tp: tp
  micro_batch_size: mbs
  gradient_accumulation_steps: acc
  seq_len: {value: 4096}
  dtype: {value: bfloat16}
figures:
  tokens_per_s_per_rank: tok_s
  peak_memory: {column: mem, unit: GiB, optional: true}
"""
GOOD = ["small", "2", "2", "1", "2", "4", "4", "1024", "40.5", "done"]


def row(**changes: object) -> list[str]:
    return [str(changes.get(name, value)) for name, value in zip(HEADER, GOOD, strict=True)]


def table(path: Path, *rows: list[str], header: list[str] = HEADER) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def mapping(path: Path, text: str = MAPPING) -> Path:
    path.write_text(text)
    return path


def imported(folder: Path, *rows: list[str], text: str = MAPPING) -> Reading:
    files = [table(folder / "mine.csv", *rows)]
    return read(import_files(files, mapping(folder / "mine.yaml", text), folder / "run"))


def figures(rows: Iterable[Row]) -> dict[str, float | None]:
    return {"/".join([row.metric, *row.detail.values()]): row.value for row in rows}


def message(folder: Path, *rows: list[str], text: str = MAPPING, header: list[str] = HEADER) -> str:
    """What is said of a file that cannot be imported, without the folder's name; nothing is left behind."""
    files = [table(folder / "mine.csv", *rows, header=header)]
    with pytest.raises(SuiteError) as caught:
        import_files(files, mapping(folder / "mine.yaml", text), folder / "run")
    assert not (folder / "run").exists()
    return str(caught.value).replace(f"{folder}/", "")


def verb(*words: object) -> str:
    """What the command line says of a mistake, in one line."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


def test_what_an_import_cannot_be_is_said_of_it(tmp_path):
    run = import_files([table(tmp_path / "mine.csv", row())], mapping(tmp_path / "mine.yaml"), tmp_path / "run")
    assert "its figures were imported" in verb("baseline", run.path, "--out", tmp_path / "base.jsonl")
    assert "figures of an import have no time" in verb("trend", run.path)
    assert verb("run", "--resume", run.path).endswith("is no run on a machine: nothing of it is left to measure.")
    again = verb("import", tmp_path / "mine.csv", "--mapping", tmp_path / "mine.yaml", "--out", run.path)
    assert again.endswith("exists and is not empty. hint: name another folder with --out")


def test_an_import_is_not_advised_to_look_at_gpus(tmp_path):
    run = import_files([table(tmp_path / "mine.csv", row())], mapping(tmp_path / "mine.yaml"), tmp_path / "run")
    report = render_report(run)
    assert report.verdict.machine.sentence == "an import holds no samples of ranks; it takes a run on the machine"
    page = report.path.read_text()
    assert "NVML on every host" not in page
    assert "nvidia-ml-py" not in page


def test_cases_that_crashed_in_the_source_are_not_said_to_have_ended_as_asked(tmp_path):
    """Of the Playbook's sweep 1,548 of 3,306 crashed, and the page said: Failed case: healthy."""
    rows = [row(), row(tp=2, gpus=8, end="out of memory")]
    run = import_files([table(tmp_path / "mine.csv", *rows)], mapping(tmp_path / "mine.yaml"), tmp_path / "run")
    page = render_report(run).path.read_text()
    assert "ended as asked" not in page
    assert "Failed case: healthy" not in page


def test_the_page_of_an_import_names_its_source_and_its_files(tmp_path):
    run = import_files([table(tmp_path / "mine.csv", row())], mapping(tmp_path / "mine.yaml"), tmp_path / "run")
    facts = dict(circumstances(read(run)))
    assert next(iter(facts)) == "source"
    assert facts["source"].endswith(" (mine.csv)")


# A good table.


def test_figures_stay_what_the_file_says_and_name_its_line(tmp_path):
    reading = imported(tmp_path, row(), row(tp=2, gpus=8, mem=""))
    dp2_rows = [row for row in reading.rows if row.case == "imported/1n4/pp2-dp2"]
    assert {(row.metric, row.value, row.basis) for row in dp2_rows} == {
        ("tokens_per_s_per_rank", 1024, "imported from mine.csv:2"),
        ("peak_memory", 40.5 * 2**30, "imported from mine.csv:2"),
        ("tokens_per_s", 4096, "tokens_per_s_per_rank, imported from mine.csv:2, times 4 ranks"),
        ("step_time", 16, "tokens of a step over tokens/s, imported from mine.csv:2: it prints no time"),
    }
    assert "peak_memory" not in {row.metric for row in reading.rows if row.case == "imported/1n8/pp2-dp2-tp2"}
    assert not reading.problems


def test_a_case_is_complete_and_the_batch_follows_from_its_parts(tmp_path):
    (history,) = imported(tmp_path, row()).histories
    assert history.case.point == {
        "shape": "small",
        "layout": "pp2-dp2",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "seq_len": 4096,
        "global_batch_size": 16,
        "dtype": "bfloat16",
    }
    assert (history.case.num_nodes, history.case.source) == (1, "mine.csv:2")


def test_words_of_the_status_become_outcomes_that_are_no_failure_of_the_import(tmp_path):
    reading = imported(tmp_path, row(), row(tp=2, gpus=8, end="out of memory", tok_s=""), row(dp=4, gpus=8, end="hang"))
    assert [history.status for history in reading.histories] == ["ok", "out_of_memory", "timeout"]
    assert [history.outcome.reason for history in reading.histories if history.outcome] == [
        "",
        "mine.csv:3 says 'out of memory'",
        "mine.csv:4 says 'hang'",
    ]
    assert not any(history.faults for history in reading.histories)


def test_the_folder_is_a_run_like_any_other(tmp_path):
    run = import_files([table(tmp_path / "mine.csv", row())], mapping(tmp_path / "mine.yaml"), out=tmp_path / "a")
    assert (run.path / "suite.yaml").read_text() == MAPPING
    assert list(run.environment()["imported"]["files"]) == ["mine.csv"]
    report = render_report(run)
    assert report.verdict.measured.word == "IMPORTED"
    page = report.path.read_text()
    assert "nothing was run or checked here" in page
    assert "Speed: of this job" not in page
    again = import_files([tmp_path / "mine.csv"], tmp_path / "mine.yaml", tmp_path / "b")
    comparing = compare_runs(run.path, again.path)
    compared = {difference.quantity for difference in comparing.differences}
    assert compared == {"tokens_per_s_per_rank", "tokens_per_s", "step_time", "peak_memory"}


def test_rows_of_one_configuration_are_kept_as_attempts_where_the_mapping_says_so(tmp_path):
    reading = imported(tmp_path, row(), row(tok_s=900), text=MAPPING + "attempts: true\n")
    assert [history.case.point["attempt"] for history in reading.histories] == [1, 2]


def test_a_printed_time_is_the_time_of_the_case(tmp_path):
    text = MAPPING.replace("tokens_per_s_per_rank: tok_s", "step_time: {column: tok_s, unit: ms}")
    (history,) = imported(tmp_path, row(), text=text).histories
    assert history.observations[0].seconds == [[1.024]] * 4


def test_text_between_two_marks_words_and_several_columns(tmp_path):
    text = MAPPING.replace("shape: model", "shape: {columns: {m: model, k: mbs}}")
    text = text.replace(
        "gradient_accumulation_steps: acc", "gradient_accumulation_steps: {column: end, after: '=', before: ;}"
    )
    text = text.replace("equals: {done: ok}", "equals: {}").replace("hang: timeout", "done: ok")
    text = text.replace("dp: dp", "dp: {column: dp, words: {two: 2}}")
    (history,) = imported(tmp_path, row(end="acc=8; done", dp="two"), text=text).histories
    point = history.case.point
    assert (point["shape"], point["layout"], point["gradient_accumulation_steps"]) == ("msmall-k2", "pp2-dp2", 8)


def test_a_collective_is_a_sweep_of_sizes(tmp_path):
    text = (
        "import: sweep\ncase: {op: {value: all_reduce}, size_bytes: bytes, world_size: {value: 8}}\n"
        "gpus_per_node: 8\nfigures:\n  algbw: {column: rate, unit: GB/s}\n"
    )
    (tmp_path / "s.csv").write_text("bytes,rate\n1048576,10.48576\n2097152,20.97152\n")
    reading = read(import_files([tmp_path / "s.csv"], mapping(tmp_path / "s.yaml", text), tmp_path / "run"))
    assert [history.case.id for history in reading.histories] == ["imported/1n8/1MiB", "imported/1n8/2MiB"]
    values = figures(row for row in reading.rows if row.case.endswith("1MiB"))
    assert values == {"algbw": pytest.approx(10.48576e9), "latency": pytest.approx(1e-4)}


@pytest.mark.parametrize("spelled", ["allreduce", "AllReduce", "all-reduce", "all_reduce"])
def test_a_collective_has_one_name_however_it_is_spelled(tmp_path, spelled):
    """'allreduce' was an operation of its own, which no chart of collectives draws."""
    text = (
        "import: sweep\ncase: {op: kind, size_bytes: bytes, world_size: {value: 8}}\n"
        "gpus_per_node: 8\nfigures:\n  algbw: {column: rate, unit: GB/s}\n"
    )
    (tmp_path / "s.csv").write_text(f"kind,bytes,rate\n{spelled},1048576,10.48576\n")
    (history,) = read(
        import_files([tmp_path / "s.csv"], mapping(tmp_path / "s.yaml", text), tmp_path / "run")
    ).histories
    assert history.case.point["op"] == "all_reduce"


def test_a_file_whose_name_is_no_text_is_imported(tmp_path):
    """Every line that named it was written so that none could be read: 'no cases; 8 lines could not be read'."""
    file = tmp_path / os.fsdecode(b"s\xff.csv")
    file.write_text("bytes,rate\n1048576,10.48576\n")
    text = (
        "import: sweep\ncase: {op: {value: all_reduce}, size_bytes: bytes, world_size: {value: 8}}\n"
        "gpus_per_node: 8\nfigures:\n  algbw: {column: rate, unit: GB/s}\n"
    )
    run = import_files([file], mapping(tmp_path / "s.yaml", text), tmp_path / "run")
    reading = read(run)
    assert (len(reading.histories), list(reading.problems)) == (1, [])
    assert {row.basis for row in reading.rows if row.metric == "algbw"} == {"imported from s?.csv:2"}
    assert "s?.csv" in run.environment()["imported"]["files"]


# A bad one.


def test_a_missing_column_is_named_with_the_nearest(tmp_path):
    header = ["model", "pp", "dp", "tp", "mbs", "acc", "gpus", "toks_s", "mem", "end"]
    assert message(tmp_path, row(), header=header) == (
        "mine.csv:1: there is no column 'tok_s', which mine.yaml:21 names. Did you mean 'toks_s'?\n"
        "Columns: model, pp, dp, tp, mbs, acc, gpus, toks_s, mem, end."
    )


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    header = ["model", "pp", "dp", "tp", "mbs", "acc", "gpus", "tok_s", "mem", "mem"]
    text = MAPPING.replace("column: end", "column: mem")
    assert message(tmp_path, row(), header=header, text=text) == (
        "mine.csv:1: 2 columns are called 'mem', which mine.yaml:22 names.\nhint: rename one of them"
    )


def test_a_number_that_is_none_is_quoted(tmp_path):
    assert message(tmp_path, row(), row(tok_s="1,024")) == (
        "mine.csv:3: column 'tok_s' holds '1,024', where 'tokens_per_s_per_rank' needs a number."
    )
    assert message(tmp_path, row(tok_s="nan")) == (
        "mine.csv:2: column 'tok_s' holds 'nan', where 'tokens_per_s_per_rank' needs a number."
    )
    assert message(tmp_path, row(tok_s="")) == (
        "mine.csv:2: column 'tok_s' is empty, where mine.yaml:21 reads 'tokens_per_s_per_rank'."
    )
    assert (
        message(tmp_path, row(mbs="2.5"))
        == "mine.csv:2: 'micro_batch_size' is 2.5; it must be a whole number of at least 1."
    )
    assert message(tmp_path, row(tok_s="-3")) == "mine.csv:2: tokens_per_s_per_rank is -3; no figure is below 0."
    assert message(tmp_path, row(tok_s="0")) == (
        "mine.csv:2: the row has neither a step time nor a throughput above 0, so it holds no measurement."
    )


def test_a_file_that_is_cut_is_refused(tmp_path):
    path = table(tmp_path / "mine.csv", row(), row(tp=2, gpus=8))
    whole = path.read_text()
    for cut, words in (
        (
            whole[:-9],
            "mine.csv:3: the last line has no end, so it may be cut in the middle of a number.\n"
            "hint: add the end of the line if the row is whole",
        ),
        (
            whole[:-12] + "\n",
            "mine.csv:3: the row has 8 cells and the header 10: the file is cut or not separated by commas.",
        ),
        (whole.splitlines()[0] + "\n", "mine.csv has a header and no rows, so there is nothing to import."),
        (whole[: whole.rindex("done")] + '"do\n', "mine.csv:3: not CSV: unexpected end of data."),
    ):
        path.write_text(cut)
        with pytest.raises(SuiteError) as caught:
            import_files([path], mapping(tmp_path / "mine.yaml"), tmp_path / "run")
        assert str(caught.value) == words


def test_two_rows_that_contradict_each_other_are_refused(tmp_path):
    assert message(tmp_path, row(), row(tok_s=900)) == (
        "mine.csv:3: this is the same configuration as mine.csv:2: shape small, layout pp2-dp2, micro_batch_size 2, "
        "gradient_accumulation_steps 4, seq_len 4096, global_batch_size 16, dtype bfloat16.\n"
        "hint: 'attempts: true' in the mapping keeps both as attempts; or name under 'keep' the column in which "
        "they differ"
    )


def test_a_row_that_contradicts_itself_is_refused(tmp_path):
    assert message(tmp_path, row(gpus=8)) == "mine.csv:2: layout 'pp2-dp2' needs 4 ranks, but world_size is 8."
    text = MAPPING.replace("  seq_len", "  global_batch_size: mem\n  seq_len")
    assert message(tmp_path, row(mem=32), text=text) == (
        "mine.csv:2: global_batch_size is 32, but micro_batch_size 2 x gradient_accumulation_steps 4 x dp 2 is 16.\n"
        "hint: leave the one that is only a label out of 'case'; it may stand under 'keep'"
    )
    text = MAPPING.replace("peak_memory: {column: mem, unit: GiB", "step_time: {column: mem, unit: s")
    assert message(tmp_path, row(mem=8), text=text) == (
        "mine.csv:2: tokens_per_s is 4096, but 65536 tokens of a step over step_time gives 8192: the row contradicts "
        "itself."
    )


def test_per_cent_read_as_a_fraction_is_noticed(tmp_path):
    text = MAPPING.replace("peak_memory: {column: mem, unit: GiB", "mfu: {column: mem, unit: fraction")
    assert message(tmp_path, row(), text=text) == (
        "mine.csv:2: mfu[source=imported] is 40.5, more than the whole.\nhint: 'unit: \"%\"' in the mapping"
    )


FLOPS = (
    "flops: {convention: palm, num_parameters: {value: 8.03e9}, embedding_parameters: {value: 0.53e9}, "
    "num_layers: {value: 32}, attention_width: {value: 4096}}\n"
)


@pytest.mark.parametrize("whole", ["tokens_per_s_per_rank: tok_s", "step_time: {column: tok_s, unit: s}"])
def test_more_flops_than_the_peak_of_a_gpu_are_noticed(tmp_path, whole):
    """Tokens/s of four ranks in the column of one: an MFU of 1.73 was recomputed, and nothing said of it."""
    text = MAPPING.replace("tokens_per_s_per_rank: tok_s", whole) + FLOPS
    tokens_per_s = 33_280
    value = tokens_per_s if whole.startswith("tokens") else 65_536 / 4 / tokens_per_s
    assert message(tmp_path, row(tok_s=value), text=text) == (
        "mine.csv:2: 33,280 tokens/s of one rank are 1,497.6 TFLOP/s by products with 7.5e+09 parameters alone, more "
        "than the peak, 989.0 TFLOP/s.\n"
        "hint: a rate of all ranks is 'tokens_per_s'; 'num_parameters' are those that a token meets"
    )
    reading = imported(tmp_path, row(tok_s=8000), text=MAPPING + FLOPS)
    assert [history.status for history in reading.histories] == ["ok"]


def test_a_word_of_the_status_that_nobody_explained_is_refused(tmp_path):
    assert message(tmp_path, row(end="dome")) == (
        "mine.csv:2: column 'end' holds 'dome', and mine.yaml:6 does not say what that means. Did you mean 'done'?\n"
        "Known: 'done', 'memory', 'hang'; 'otherwise' is for all others."
    )
    assert message(tmp_path, row(end="memory hang")) == (
        "mine.csv:2: column 'end' holds 'memory hang', which means out_of_memory and timeout by mine.yaml:6."
    )


def test_a_step_time_is_never_guessed(tmp_path):
    text = MAPPING.replace("acc\n", "{column: acc, optional: true}\n")
    assert message(tmp_path, row(acc=""), text=text) == (
        "mine.csv:2: the row has no step time, and without seq_len and global_batch_size (or micro_batch_size and "
        "gradient_accumulation_steps) none follows from its throughput."
    )


def test_an_impossible_time_leaves_no_folder(tmp_path):
    text = MAPPING.replace("tokens_per_s_per_rank: tok_s", "step_time: {column: tok_s, unit: s}")
    assert message(tmp_path, row(tok_s="1e12"), text=text) == (
        "mine.csv:2: the time of the case is 1000000000000.0 s; possible are 1e-12 to 1e+09 s.\n"
        "hint: look at the units in the mapping"
    )


# A mistaken mapping.


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "shape: model",
            "shap: model",
            "m.yaml:11: 'case' has no key 'shap'. Did you mean 'shape'?\nKeys: shape, op, layout, pp, dp, cp, tp, "
            f"{', '.join(RIDERS)}, world_size, num_nodes, micro_batch_size, gradient_accumulation_steps, "
            "global_batch_size, seq_len, size_bytes, dtype.",
        ),
        (
            "tokens_per_s_per_rank:",
            "tokens_per_s_per_gpu:",
            "m.yaml:21: there is no metric 'tokens_per_s_per_gpu'. Did you mean 'tokens_per_s_per_rank'?\nMetrics: "
            "step_time, tokens_per_s, tokens_per_s_per_rank, model_flops_per_s_per_rank, "
            "hardware_flops_per_s_per_rank, mfu, hfu, peak_memory, latency, algbw, busbw, bandwidth, "
            "message_rate, retransmits, flops_per_s, loss.",
        ),
        (
            "{column: mem, unit: GiB, optional: true}",
            "mem",
            "m.yaml:22: figure 'peak_memory' needs a unit: {column: mem, unit: B, MB, GB, MiB or GiB}.",
        ),
        (
            "unit: GiB",
            "unit: GIB",
            "m.yaml:22: figure 'peak_memory' needs a unit, B, MB, GB, MiB or GiB, not 'GIB'.",
        ),
        (
            "equals: {done: ok}",
            "equals: {done: okay}",
            "m.yaml:8: 'okay' is no outcome. Did you mean 'ok'?\n"
            "Outcomes: ok, wrong, failed, timeout, out_of_memory, skipped.",
        ),
        (
            "gpus_per_node: 8\n",
            "",
            "m.yaml:9: how many nodes a case ran on is not said: give 'gpus_per_node', or 'num_nodes' in 'case'.",
        ),
        (
            "{value: bfloat16}",
            "{value: bfloat16, scale: 2}",
            "m.yaml:19: 'scale' has no effect on a value that holds for every row.",
        ),
        (
            "pp: pp",
            "pp: {column: pp, optional: true}",
            "m.yaml:13: 'pp' cannot be optional: without it a row is no case.",
        ),
        (
            "import: mine",
            "import: a b",
            "m.yaml:1: 'import' names the run's folder: letters, digits, '_', '.' and '-', not 'a b'.",
        ),
        (
            "  tokens_per_s_per_rank: tok_s\n",
            "",
            "m.yaml:20: 'figures' of training needs one of step_time, tokens_per_s, tokens_per_s_per_rank.",
        ),
        (
            "gpu: NVIDIA H100 80GB HBM3",
            "gpu: h100-sxm-80gb",  # was refused as 'gpu_name', without file and line
            "m.yaml:4: 'gpu' is 'h100-sxm-80gb', as the tables have it; it must be 'NVIDIA H100 80GB HBM3', as drivers "
            "do.",
        ),
        (
            "gpu: NVIDIA H100 80GB HBM3",
            "gpu: h100",  # was taken, and no figure had a peak
            "m.yaml:4: 'gpu' is 'h100'; it must be a driver's name: 'NVIDIA H100 80GB HBM3'.",
        ),
        (
            "gpu: NVIDIA H100 80GB HBM3",
            "gpu: A100",
            "m.yaml:4: 'gpu' is 'A100'; it must be a driver's name: 'NVIDIA A100-SXM4-80GB' or "
            "'NVIDIA A100-SXM4-40GB'.",
        ),
        (
            "question:",
            "queston:",
            "m.yaml:2: a mapping has no key 'queston'. Did you mean 'question'?\nKeys: import, question, source, "
            "device, gpu, gpus_per_node, attempts, status, case, keep, figures, flops.",
        ),
    ],
)
def test_a_mistake_in_the_mapping_has_its_line(old, new, words):
    assert old in MAPPING
    with pytest.raises(SuiteError) as caught:
        read_mapping(MAPPING.replace(old, new, 1).encode(), "m.yaml")
    assert str(caught.value) == words


def test_flops_need_a_gpu_on_record():
    text = (
        MAPPING.replace("HBM3", "HBM")
        + "flops: {convention: palm_6n, num_parameters: a, num_layers: b, attention_width: c}\n"
    )
    with pytest.raises(SuiteError) as caught:
        read_mapping(text.encode(), "m.yaml")
    assert str(caught.value) == (
        "m.yaml:23: 'flops' needs a peak, and none is on record for 'gpu' 'NVIDIA H100 80GB HBM'. "
        "Did you mean 'NVIDIA H100 80GB HBM3'?\n"
        "hint: name the GPU as its driver does, e.g. 'NVIDIA H100 80GB HBM3'"
    )


def test_a_suite_cannot_ask_for_imported_figures():
    place = Place(Cluster(1, 2, "cpu"), 1)
    (point,) = Imported().points(place)
    assert Imported().objection(point, place) == (
        "'imported' runs nothing: its cases come from files of other tools, by 'clusterbench import FILE', and not "
        "from a suite"
    )


# nanotron.

NANOTRON = {
    "job_id": "77",
    "name": "a",
    "nodes": "1",
    "seq_len": "4096",
    "mbs": "2",
    "batch_accum": "4",
    "gbs": "16",
    "mTFLOPs": "400.00",
    "hTFLOPs": "410.00",
    "tok/s/gpu": "8000.00",
    "Mem Alloc (GB)": "20.00",
    "Mem Res (GB)": "30.00",
    "dp": "2",
    "pp": "1",
    "tp": "4",
    "cp": "1",
    "ep": "1",
    "tp_mode": "TensorParallelLinearMode.REDUCE_SCATTER",
    "hidden_size": "2048",
    "num_layers": "16",
    "vocab_size": "131072",
    "dtype": "torch.bfloat16",
    "zero_stage": "1",
}


def nanotron(path: Path, **changes: str) -> Path:
    return table(path, [*{**NANOTRON, **changes}.values()], header=[*NANOTRON])


def test_nanotrons_columns_need_no_mapping(tmp_path):
    run = import_files([nanotron(tmp_path / "bench.csv")], None, tmp_path / "run")
    reading = read(run)
    (history,) = reading.histories
    assert history.case.layout == "dp2-tp4+sp+zero1"
    assert history.case.point["shape"] == "L16-h2048-v131072"
    assert figures(reading.rows) == {
        "tokens_per_s_per_rank": 8000,
        "tokens_per_s": 64_000,
        "step_time": pytest.approx(16 * 4096 / 64_000),
        "model_flops_per_s_per_rank": 400e12,
        "hardware_flops_per_s_per_rank": 410e12,
        "peak_memory/allocated": 20 * 2**30,
        "peak_memory/reserved": 30 * 2**30,
    }


def test_nanotrons_mode_of_tp_means_nothing_on_one_rank(tmp_path):
    (history,) = read(
        import_files([nanotron(tmp_path / "bench.csv", tp="1", dp="2", nodes="1")], None, tmp_path / "run")
    ).histories
    assert history.case.layout == "dp2+zero1"


def test_nanotrons_experts_are_refused(tmp_path):
    with pytest.raises(
        SuiteError, match=r"^bench.csv:2: column 'ep' holds '2', and nanotron's columns:\d+ does not say"
    ):
        import_files([nanotron(tmp_path / "bench.csv", ep="2")], None, tmp_path / "run")


# nccl-tests.

PRINTED = """\
# nccl-tests version 2.17.1 nccl-headers=22800 nccl-library=22800
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid    100 on      alpha device  0 [0000:01:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    100 on      alpha device  1 [0000:02:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid    200 on       beta device  0 [0000:01:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid    200 on       beta device  1 [0000:02:00] NVIDIA H100 80GB HBM3
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     10.0    0.00    0.00       0     10.0    0.00    0.00       0
     1048576        262144     float     sum      -1    100.0   10.49   15.73       0    104.9   10.00   15.00       0
  1073741824     268435456     float     sum      -1  10737.4  100.00  150.00       0  10700.0  100.35  150.52       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 82.8
#
"""


def test_nccl_tests_table_becomes_a_sweep(tmp_path):
    (tmp_path / "a.txt").write_text(PRINTED)
    run = import_files([tmp_path / "a.txt"], None, tmp_path / "run")
    reading = read(run)
    assert [history.case.id for history in reading.histories] == ["imported/2n4/1MiB", "imported/2n4/1GiB"]
    assert (reading.plan.cluster.gpu_name, reading.plan.cluster.hosts) == ("NVIDIA H100 80GB HBM3", ("alpha", "beta"))
    assert reading.histories[0].case.point == {
        "op": "all_reduce",
        "size_bytes": 2**20,
        "dtype": "float32",
        "redop": "sum",
    }
    rows = [row for row in reading.rows if row.case.endswith("1GiB")]
    assert figures(rows) == {
        "latency/out_of_place": 0.0107374,
        "algbw/out_of_place": 100e9,
        "busbw/out_of_place": 150e9,
        "latency/in_place": 0.0107,
        "algbw/in_place": 100.35e9,
        "busbw/in_place": 150.52e9,
    }
    assert {row.basis for row in rows} == {"imported from a.txt:13"}
    assert run.environment()["imported"]["notes"] == ["a.txt: 1 rows of 0 bytes are left out: they moved nothing"]


def small_calls(path: Path, time_us: float) -> Path:
    """Of 4,096 bytes among four ranks, as nccl-tests prints it."""
    algbw = 4096 / time_us / 1e3
    half = f"{time_us:8.2f} {algbw:7.2f} {1.5 * algbw:7.2f}       0"
    row = f"        4096          1024     float     sum      -1 {half} {half}"
    text = "\n".join(row if line.startswith("  1073741824") else line for line in PRINTED.splitlines())
    path.write_text(text + "\n")
    return path


def test_bandwidths_of_small_calls_are_size_over_time_and_not_two_decimals_of_a_gigabyte(tmp_path):
    reading = read(import_files([small_calls(tmp_path / "a.txt", 268.12)], None, tmp_path / "run"))
    found = figures([row for row in reading.rows if row.case.endswith("4KiB")])
    assert found["algbw/in_place"] == pytest.approx(15.276742e6)  # printed as 0.02
    assert found["busbw/in_place"] == pytest.approx(22.915113e6)  # printed as 0.02


def test_a_call_that_takes_three_percent_longer_is_no_regression_by_a_rounded_bandwidth(tmp_path):
    """Its algbw is printed as 0.02 and as 0.01: half, by two decimals of a gigabyte a second."""
    runs = [
        import_files([small_calls(tmp_path / f"{time_us}.txt", time_us)], None, tmp_path / f"run{time_us}").path
        for time_us in (268.12, 276.90)
    ]
    compared = compare_runs(*runs)
    assert not compared.is_regression
    assert max(difference.worsening for difference in compared.judged) == pytest.approx(math.log(276.90 / 268.12))


@pytest.mark.parametrize(
    ("old", "new", "facts", "words"),
    [
        (
            "# Collective test starting: all_reduce_perf\n",
            "",
            Facts(),
            "a.txt does not say which collective it timed; versions before 2.17 do not print it.\nhint: say it with "
            "--op, one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, "
            "send_recv",
        ),
        (
            "all_reduce_perf",
            "all_gather_perf",
            Facts(),
            "a.txt:12: busbw over algbw is 1.500, but all_gather on 4 ranks has the factor 0.750: it was another "
            "collective or another number of ranks.",
        ),
        (
            "",
            "",
            Facts(op="broadcast"),
            "a.txt was printed by 'all_reduce_perf', but --op says broadcast.",
        ),
        ("", "", Facts(num_ranks=8), "a.txt lists 4 ranks, but --num-ranks says 8."),
        ("", "", Facts(num_nodes=4), "a.txt lists 2 hosts, but --num-nodes says 4."),
        (
            "#  Rank  1 Group  0 Pid    100 on      alpha device  1 [0000:02:00] NVIDIA H100 80GB HBM3\n",
            "",
            Facts(),
            "a.txt does not list every rank, so their number is unknown.\n"
            "hint: say it with --num-ranks, and on how many nodes they were with --num-nodes",
        ),
        (
            "    time   algbw",
            " cputime   algbw",
            Facts(),
            "a.txt: nccl-tests printed the time of the CPU (-C 1), which is not that of the collective",
        ),
        ("0 OK", "2 FAILED", Facts(), "a.txt: 2 checks failed in this run: its figures are of wrong results."),
        (
            " float ",
            " quad  ",
            Facts(),
            "a.txt:12: type 'quad' is not known. Known: int8, uint8, int32, uint32, int64, uint64, half, float, "
            "double, bfloat16, f8e4m3, f8e5m2.",
        ),
    ],
)
def test_what_nccl_tests_does_not_say_is_asked_for(tmp_path, old, new, facts, words):
    (tmp_path / "a.txt").write_text(PRINTED.replace(old, new) if old else PRINTED)
    with pytest.raises(SuiteError) as caught:
        import_files([tmp_path / "a.txt"], None, tmp_path / "run", facts)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("int8", "int8"),
        ("uint64", "uint64"),
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        ("bfloat16", "bfloat16"),
        ("f8e4m3", "float8_e4m3"),
        ("f8e5m2", "float8_e5m2"),
    ],
)
def test_nccls_names_of_types_are_those_of_torch(tmp_path, word, dtype):
    """Source: NVIDIA/nccl-tests, src/common.cu, test_typenames."""
    (tmp_path / "a.txt").write_text(PRINTED.replace(" float ", f" {word} "))
    rows = read(import_files([tmp_path / "a.txt"], None, tmp_path / "run")).rows
    assert {row.point["dtype"] for row in rows} == {dtype}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_what_stands_before_the_lines_of_nccl_tests_changes_nothing(tmp_path, prefix):
    figures = []
    for name, ahead in (("plain", ""), ("prefixed", prefix)):
        (tmp_path / "a.txt").write_text("".join(f"{ahead}{line}\n" for line in PRINTED.splitlines()))
        run = import_files([tmp_path / "a.txt"], None, tmp_path / name)
        figures.append([(row.case, row.metric, row.value, row.basis) for row in read(run).rows])
    assert figures[0] == figures[1]


def test_marks_that_markdown_took_for_headings_change_nothing(tmp_path):
    figures = []
    for name, text in (("plain", PRINTED), ("pasted", PRINTED.replace("\n#", "\n").removeprefix("#"))):
        (tmp_path / "a.txt").write_text(text)
        run = import_files([tmp_path / "a.txt"], None, tmp_path / name)
        figures.append([(row.case, row.metric, row.value, row.basis) for row in read(run).rows])
    assert figures[0] == figures[1]


def test_times_of_day_behind_the_rows_change_nothing(tmp_path):
    """Source: NVIDIA/nccl-tests, src/util.cu, writeTimestamp (-S)."""
    (tmp_path / "a.txt").write_text(PRINTED)
    said = PRINTED.replace("#wrong\n", "#wrong           timestamp\n").replace("/s)\n", "/s)   %Y-%m-%d %H:%M:%S\n")
    (tmp_path / "b.txt").write_text(re.sub(r"(?m)( float .*)$", r"\1  2026-03-02 14:01:37", said))
    plain, stamped = (import_files([tmp_path / name], None, tmp_path / name[0]) for name in ("a.txt", "b.txt"))
    assert figures(read(stamped).rows) == figures(read(plain).rows)


def test_nccl_tests_cut_off_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(PRINTED[: PRINTED.index("# Out")])
    with pytest.raises(SuiteError, match=r"^a.txt: nccl-tests did not finish its table: "):
        import_files([tmp_path / "a.txt"], None, tmp_path / "run")


def half(time_us: float, algbw: float, wrong: int | None = 0) -> dict[str, Any]:
    return {"time": time_us, "alg_bw": algbw, "bus_bw": 1.5 * algbw, "nwrong": wrong}


def nccl_json(**changes: Any) -> Mapping[str, Any]:
    result = {"size": 2**30, "count": 2**28, "type": "float", "redop": "sum", "root": "    -1"}
    devices = [{"rank": rank, "hostname": host, "device_info": "GPU"} for rank, host in ((0, "alpha"), (2, "beta"))]
    return {
        "version": 2,
        "args": ["/opt/all_reduce_perf", "-J", "x"],
        "env": ["SECRET_TOKEN=hunter2"],
        "nccl_version": 22800,
        "config": {"nthreads": 1, "ngpus": 2, "devices": devices},
        "results": [{**result, "out_of_place": half(10_000, 107.374), "in_place": half(10_737.4, 100.0, None)}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        **changes,
    }


def test_nccl_tests_json_counts_all_gpus_of_a_process_and_reads_no_variables(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(nccl_json()))
    run = import_files([tmp_path / "a.json"], None, tmp_path / "run")
    reading = read(run)
    (history,) = reading.histories
    assert (history.case.world_size, history.case.num_nodes) == (4, 2)
    assert history.observations[0].hosts == ("alpha", "alpha", "beta", "beta")
    assert figures(reading.rows)["busbw/in_place"] == pytest.approx(150e9)
    assert {row.basis for row in reading.rows} == {"imported from a.json results[0]"}
    assert not any(b"hunter2" in file.read_bytes() for file in run.path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 9}, "a.json: version 9 of nccl-tests' JSON is not known. Known: 1, 2, 3."),
        ({"results": []}, "a.json holds no results."),
        ({"out_of_bounds": {"count": 3}}, "a.json: 3 checks failed in this run: its figures are of wrong results."),
        ({"results": [{"size": 8}]}, "a.json: results[0] printed no 'out_of_place.time'"),
    ],
)
def test_json_that_says_too_little_is_refused(tmp_path, changes, words):
    (tmp_path / "a.json").write_text(json.dumps(nccl_json(**changes)))
    with pytest.raises(SuiteError) as caught:
        import_files([tmp_path / "a.json"], None, tmp_path / "run")
    assert str(caught.value) == words


def test_json_nested_without_end_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"nccl_version": 1, "results": ' + "[" * 100_000)
    with pytest.raises(SuiteError) as caught:
        import_files([tmp_path / "a.json"], None, tmp_path / "run")
    assert str(caught.value) == "a.json: not whole JSON: it is nested too deeply."


@needs_shared
@pytest.mark.parametrize(
    ("name", "op", "sizes"),
    [
        ("allreduce", "all_reduce", 32),
        ("allgather", "all_gather", 29),
        ("reducescatter", "reduce_scatter", 29),
        ("alltoall", "all_to_all", 29),
        ("broadcast", "broadcast", 32),
        ("reduce", "reduce", 32),
    ],
)
def test_recorded_tables_are_read_whole(tmp_path, name, op, sizes):
    file = SAMPLES / f"nccl_tests_{name}_superbench.txt"
    reading = read(import_files([file], None, tmp_path / "run", Facts(op=op)))
    assert len(reading.histories) == sizes
    assert {history.case.world_size for history in reading.histories} == {8}


# The command line.


def test_the_verb_prints_the_page_and_ends_with_2_on_a_mistake(tmp_path):
    (tmp_path / "a.txt").write_text(PRINTED)
    done = CliRunner().invoke(main, ["import", str(tmp_path / "a.txt"), "--out", str(tmp_path / "run")])
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'run' / 'index.html'}\n")
    (tmp_path / "b.txt").write_text("what is this?\n")
    done = CliRunner().invoke(main, ["import", str(tmp_path / "b.txt"), "--out", str(tmp_path / "other")])
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: {tmp_path}/b.txt is neither a table or JSON of nccl-tests nor a CSV of nanotron (with columns "
        "batch_accum, mTFLOPs, tok/s/gpu, zero_stage), nor what one of these printed: "
        f"{', '.join(output.tool for output in outputs())}.\n"
        "hint: say what the columns of a CSV mean with --mapping FILE: docs/importing.md; 'clusterbench doctor --log "
        f"{tmp_path}/b.txt' judges what other programs printed: docs/doctor.md\n"
    )


def test_a_text_of_another_program_is_not_asked_for_the_end_of_its_last_line(tmp_path):
    (tmp_path / "smi.txt").write_text("+---+\n| NVIDIA-SMI 550.90 |\n+---+")
    with pytest.raises(SuiteError, match=r"smi\.txt is neither a table"):
        import_files([tmp_path / "smi.txt"], None, tmp_path / "run")


# The sweep of the Playbook.

WINNERS = {
    # (model, GPUs): (tp, pp, dp, zero, micro-batch, accumulation). huggingface/nanotron, docs/benchmark_summary.svg:
    # the highest MFU of each model and number of nodes of 8 H100, as the Ultra-Scale Playbook prints it, too.
    ("nanotron-llama-1B", 8): (1, 2, 4, 1, 4, 16),
    ("nanotron-llama-1B", 16): (1, 2, 8, 1, 1, 32),
    ("nanotron-llama-1B", 32): (1, 2, 16, 1, 1, 16),
    ("nanotron-llama-1B", 64): (1, 2, 32, 1, 1, 8),
    ("nanotron-llama-1B", 128): (2, 1, 64, 0, 4, 1),
    ("nanotron-llama-1B", 256): (4, 1, 64, 0, 4, 1),
    ("nanotron-llama-1B", 512): (2, 2, 128, 1, 2, 1),
    ("nanotron-llama-3B", 8): (1, 2, 4, 1, 2, 32),
    ("nanotron-llama-3B", 16): (1, 2, 8, 1, 2, 16),
    ("nanotron-llama-3B", 32): (1, 2, 16, 1, 2, 8),
    ("nanotron-llama-3B", 64): (1, 2, 32, 1, 1, 8),
    ("nanotron-llama-3B", 128): (4, 1, 32, 0, 8, 1),
    ("nanotron-llama-3B", 256): (4, 1, 64, 0, 4, 1),
    ("nanotron-llama-3B", 512): (4, 1, 128, 1, 2, 1),
    ("nanotron-llama-8B", 8): (1, 4, 2, 1, 1, 128),
    ("nanotron-llama-8B", 16): (4, 1, 4, 1, 4, 16),
    ("nanotron-llama-8B", 32): (1, 2, 16, 1, 1, 16),
    ("nanotron-llama-8B", 64): (1, 2, 32, 1, 1, 8),
    ("nanotron-llama-8B", 128): (8, 1, 16, 0, 8, 2),
    ("nanotron-llama-8B", 256): (8, 1, 32, 0, 8, 1),
    ("nanotron-llama-8B", 512): (4, 1, 128, 0, 2, 1),
    ("nanotron-llama-80B", 32): (8, 4, 1, 0, 1, 256),
    ("nanotron-llama-80B", 64): (4, 16, 1, 0, 1, 256),
    ("nanotron-llama-80B", 128): (4, 32, 1, 0, 1, 256),
    ("nanotron-llama-80B", 256): (4, 16, 4, 1, 1, 64),
    ("nanotron-llama-80B", 512): (16, 1, 32, 1, 2, 4),
}


def chosen(case: Trained) -> tuple[int, ...]:
    layout, point = case.layout, case.point
    batch = point["micro_batch_size"], point["gradient_accumulation_steps"]
    return (layout.tp, layout.pp, layout.dp, layout.zero, *batch)


def documented() -> str:
    """The mapping in docs/importing.md, so that what stands there stays true."""
    block = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "importing.md").read_text(), re.DOTALL)
    assert block
    return block[1]


def test_the_mapping_in_the_documentation_has_no_mistake():
    assert read_mapping(documented().encode(), "docs/importing.md").name == "playbook"


@pytest.fixture(scope="module")
def playbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("playbook")
    files = [DATA / f"ultrascale_playbook_{name}.csv" for name in ("sweep", "failed")]
    return import_files(files, mapping(folder / "playbook.yaml", documented()), folder / "run").path


@needs_shared
def test_the_published_sweep_has_the_published_winners_and_says_where_they_are_wrong(playbook):
    from clusterbench.run_folder import RunFolder

    reading = read(RunFolder.open(playbook))
    assert len(reading.histories) == 3306
    assert sum(history.status == "failed" for history in reading.histories) == 1548
    assert not reading.problems
    chart = TopConfig()
    (grid,) = chart.select(reading) or []
    by_mfu = {cell: {*map(chosen, best(cases, imported_mfu))} for cell, cases in grid.cells.items()}
    by_speed = {cell: {*map(chosen, best(cases, throughput))} for cell, cases in grid.cells.items()}
    assert {cell for cell, tops in by_mfu.items() if tops} == {*WINNERS}
    assert all(winner in by_mfu[cell] for cell, winner in WINNERS.items())
    differing = {cell for cell, winner in WINNERS.items() if winner not in by_speed[cell]}
    assert differing == {
        *(("nanotron-llama-1B", gpus) for gpus in (8, 16, 32, 64)),
        *(("nanotron-llama-3B", gpus) for gpus in (16, 32, 64)),
    }
    assert ({*moved_by_mfu(grid)[0]}, moved_by_mfu(grid)[1]) == (differing, 26)
    assert by_speed["nanotron-llama-8B", 16] == {(4, 1, 4, 1, 4, 16), (1, 4, 4, 1, 1, 64)}  # a tie: both are shown
    ratios = mfu_ratios(grid)
    assert ratios.pop(("nanotron-llama-1B", True)) == pytest.approx(1.167, abs=0.0005)
    assert ratios.pop(("nanotron-llama-3B", True)) == pytest.approx(1.095, abs=0.0005)
    assert list(ratios.values()) == pytest.approx([1.0] * 6, abs=0.005)
    heading, one_b, *others = chart.answer([grid]).splitlines()
    assert heading == "Fastest of each shape:"
    assert len(others) == 3
    assert one_b.startswith("nanotron-llama-1B on 256 GPUs of 32 nodes with ")
    assert one_b.endswith("; 512 GPUs of 64 nodes reach 2,356,736 tokens/s)")
    assert chart.left_out([grid]).endswith(
        "Ranked by the imported MFU instead, 7 of 26 cells name another layout or micro-batch. The imported MFU does "
        "not follow from throughput alone: over the MFU recomputed from it, it is 1.167 for nanotron-llama-1B with pp "
        "> 1, 1.095 for nanotron-llama-3B with pp > 1, and 1.00 for all others."
    )


@needs_shared
def test_a_cell_of_the_published_sweep_tells_its_margin_and_what_the_others_have(playbook):
    from clusterbench.run_folder import RunFolder

    chart = TopConfig()
    speed, mfu = chart.draw(chart.select(read(RunFolder.open(playbook))) or [])
    stories = {entry.cells[:3]: entry.story for entry in speed.entries}
    assert len([story for story in stories.values() if story is not None and story.lines[0][0] == "1"]) == 26
    assert all(len(story.lines) <= 40 for story in stories.values() if story is not None)
    tie = stories["nanotron-llama-8B", 2, 16]
    assert tie is not None
    assert tie.title == "nanotron-llama-8B on 16 GPUs of 2 nodes"
    assert tie.sentences == (
        "As fast as each other, and the fastest, are dp4-tp4+zero1, GAS 16, MBS 4 and pp4-dp4+zero1, GAS 64, MBS 1: "
        "116,640 tokens/s, 7,290 tokens/s per GPU, MFU 44 % (palm_6n convention, peak of the datasheet, recomputed "
        "from tokens/s).",
        "The runner-up, pp2-dp4-tp2+zero1, GAS 32, MBS 2, takes 3.0 % longer for a step. With one sample nothing is "
        "known of the noise.",
        "Where it is not known what a step was spent on, the table says what differs.",
        "Of 115 cases: 36 with a figure, 79 failed.",
        "The first 40 are listed; the others: 75 failed.",
    )
    assert [line[-1] for line in tie.lines[:3]] == [
        "as fast",
        "as fast",
        "differs: TP 2 instead of 4, PP 2 instead of 1, MBS 2 instead of 4",
    ]
    moved = {entry.cells[:3]: entry.story for entry in mfu.entries}["nanotron-llama-1B", 1, 8]
    assert moved is not None
    assert moved.sentences == (
        "The highest imported MFU, 44 %, is of pp2-dp4+zero1, GAS 16, MBS 4.",
        "By tokens/s the fastest is dp8, GAS 16, MBS 2.",
        "As imported it is 1.166 times the MFU that its tokens/s give.",
    )


@needs_shared
def test_the_page_of_the_published_sweep_is_no_burden(playbook):
    from clusterbench.run_folder import RunFolder

    made = render_report(RunFolder.open(playbook))
    page = made.path.read_text()
    assert made.verdict.measured.word == "IMPORTED"
    assert len(page) < 8e6
    assert "7 of 26 cells name another layout or micro-batch" in page
