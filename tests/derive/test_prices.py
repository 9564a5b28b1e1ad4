"""Prices beside measured steps: by a file that is named, by the run's own, and not by those of another machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clusterbench.cli import main
from clusterbench.derive import AskedRates, read
from clusterbench.derive.prices import prices_of
from clusterbench.derive.several_runs import read_several
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import Fingerprint
from clusterbench.launch.run import RunOptions, run
from clusterbench.pricing.rates import CPU
from clusterbench.pricing.rates_file import rates_text
from clusterbench.pricing.typical import typical_of
from clusterbench.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "reports" / "examples" / "tp_scale-cpu"
STEPS = 5
TYPICAL = typical_of(CPU)

SUITE = """\
suite: small
question: What does a step take?
benchmarks:
  - benchmark: train_step
    shape: llama-flat-tiny
    seq_len: 64
    global_batch_size: 2
    layouts: [tp1]
    dtype: float32
    iterations: 2
    warmup: 1
cpu: {num_ranks: 1}
"""


def written(folder: Path, profile: str = "ours", **machine: str) -> Path:
    path = folder / "rates.yaml"
    path.write_text(rates_text(replace(TYPICAL, name="a laptop", profile=profile, machine=Fingerprint(**machine))))
    return path


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def test_without_rates_nothing_is_priced(folder: Path) -> None:
    reading = read(RunFolder.open(folder))
    assert reading.prices.by_case == {}
    assert {row.expected for row in reading.rows_of("step_time")} == {None}


def test_every_step_has_its_price_with_origin_source_and_interval(folder: Path, tmp_path: Path) -> None:
    reading = read(RunFolder.open(folder), AskedRates(written(tmp_path)))
    rows = [row for row in reading.rows_of("step_time") if row.benchmark == "train_step"]
    assert len(rows) == STEPS
    for row in rows:
        of_case = reading.prices.by_case[row.case]
        assert row.expected == of_case.price.step_s > 0
        assert row.basis.startswith("priced by rates.yaml, a laptop (typical: matmul, attention, ")
        assert "; 80 % within " in row.basis
    others = [row for row in reading.rows if row.metric != "step_time"]
    assert others == [row for row in read(RunFolder.open(folder)).rows if row.metric != "step_time"]


def test_a_case_with_an_option_of_which_no_rate_is_known_has_a_reason_and_no_price(
    folder: Path, tmp_path: Path
) -> None:
    """Without a price it is never judged."""
    run = RunFolder.open(folder)
    plan = run.plan()
    first, *others = (case for case in plan.cases if case.benchmark == "train_step")
    compiled = replace(first, point={**first.point, "compile": True})
    prices = prices_of(replace(plan, cases=(compiled, *others)), run.environment(), written(tmp_path))
    assert len(prices.by_case) == STEPS - 1
    assert prices.reasons == {first.id: "compile: what a compiled layer launches, reads and writes is not priced"}


def test_the_rates_of_the_run_itself_are_found(folder: Path) -> None:
    written(folder)
    assert len(read(RunFolder.open(folder)).prices.by_case) == STEPS


def test_rates_named_for_a_run_without_a_timed_step_are_said_to_have_no_effect(folder: Path, tmp_path: Path) -> None:
    """An imported run has no case of train_step, and of a dry run none was timed."""
    without = Path(shutil.copytree(EXAMPLE.parent / "fabric-cpu", tmp_path / "fabric"))
    (why,) = read(RunFolder.open(without), AskedRates(written(tmp_path))).prices.unused
    assert why == ("--rates has no effect on this run. It has no time of a case of train_step, which alone is priced")
    (folder / "observations.jsonl").write_text("")
    done = invoked("report", folder, "--rates", written(tmp_path))
    assert "# no step is priced: --rates has no effect on this run. It has no time of a case of" in done.stderr
    assert "What steps should have taken: --rates has no effect" in (folder / "index.html").read_text()


def test_rates_of_another_machine_are_not_used_and_said(folder: Path) -> None:
    written(folder, cpu="AMD EPYC 7763")
    reading = read(RunFolder.open(folder))
    assert reading.prices.by_case == {}
    assert reading.problems == ()
    (why,) = reading.prices.unused
    assert why.startswith("rates.yaml is of another machine: it has cpu AMD EPYC 7763, and this one ")
    assert "--accept-other cpu uses it all the same" in why


def test_rates_of_another_framework_are_not_used_and_said(folder: Path) -> None:
    written(folder, profile="nanotron")
    (why,) = read(RunFolder.open(folder)).prices.unused
    assert why.startswith("rates.yaml was fitted to steps of nanotron, and --profile is ours")


def test_accepted_by_name_they_are_used_and_each_basis_says_so(folder: Path) -> None:
    written(folder, cpu="AMD EPYC 7763", torch="1.0")
    reading = read(RunFolder.open(folder), AskedRates(accepted=("cpu", "torch")))
    assert len(reading.prices.by_case) == STEPS
    for of_case in reading.prices.by_case.values():
        assert "they are of cpu AMD EPYC 7763, accepted though this is " in of_case.basis
        assert any("they are of torch 1.0" in doubt for doubt in of_case.doubts)
    assert read(RunFolder.open(folder), AskedRates(accepted=("torch",))).prices.by_case == {}


def test_a_file_that_is_named_and_of_another_machine_is_a_mistake(folder: Path, tmp_path: Path) -> None:
    path = written(tmp_path, cpu="AMD EPYC 7763")
    with pytest.raises(SuiteError, match="is of another machine: it has cpu AMD EPYC 7763"):
        read(RunFolder.open(folder), AskedRates(path))
    done = invoked("report", folder, "--rates", path)
    assert (done.exit_code, done.stdout) == (2, "")
    done = invoked("report", folder, "--rates", path, "--accept-other", "cpu")
    assert done.exit_code == 0


def test_accepting_what_no_file_has_is_a_mistake(folder: Path) -> None:
    done = invoked("report", folder, "--accept-other", "cpu")
    assert done.exit_code == 2
    assert done.stderr == "error: --accept-other has no effect on a run without rates, whose machine it is about.\n"


def test_a_damaged_file_in_the_folder_costs_the_prices_and_not_the_run(folder: Path) -> None:
    (folder / "rates.yaml").write_text("of: x\nrates: {matmul: fast}\n")
    reading = read(RunFolder.open(folder))
    (why,) = reading.prices.unused
    assert why.startswith("rates.yaml:2: 'matmul: fast' must be")
    done = invoked("report", folder)
    assert done.exit_code == 0
    assert "# no step is priced: rates.yaml:2: 'matmul: fast'" in done.stderr
    assert "What steps should have taken: rates.yaml:2:" in (folder / "index.html").read_text()


def test_terminal_and_page_have_the_price_beside_the_step(folder: Path, tmp_path: Path) -> None:
    done = invoked("report", folder, "--rates", written(tmp_path))
    lines = [line.split() for line in done.stderr.splitlines() if line]
    assert lines[0] == ["#", "case", "step", "priced", "from", "to", "measured"]
    assert len([line for line in lines if line[0].startswith("train_step/")]) == STEPS
    assert '"name":"priced","unit":"ms"' in (folder / "index.html").read_text()


def test_runs_of_one_page_keep_their_prices(folder: Path, tmp_path: Path) -> None:
    written(folder)
    other = Path(shutil.copytree(EXAMPLE, tmp_path / "other"))
    reading = read_several([RunFolder.open(folder), RunFolder.open(other)])
    priced = [row for row in reading.rows_of("step_time") if row.expected is not None]
    assert {row.case.partition(": ")[0] for row in priced} == {"run"}
    assert len(priced) == len(reading.prices.by_case) == STEPS


def test_a_run_keeps_the_rates_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE)
    rates = written(tmp_path)
    made = tmp_path / "made"
    assert run(RunOptions(tmp_path / "small.yaml", out=made, device="cpu", rates=rates)) == 0
    assert (made / "rates.yaml").read_bytes() == rates.read_bytes()
    (row,) = read(RunFolder.open(made)).rows_of("step_time")
    assert row.expected is not None


@pytest.mark.parametrize(
    ("said", "suite", "words"),
    [
        ({"cpu": "AMD EPYC 7763"}, SUITE, "is of another machine"),
        ({}, "suite: x\nquestion: y\nbenchmarks: [{benchmark: device_copy}]\n", "--rates has no effect on x"),
    ],
)
def test_rates_that_can_price_nothing_end_a_run_before_it_begins(
    tmp_path: Path, said: dict[str, str], suite: str, words: str
) -> None:
    (tmp_path / "small.yaml").write_text(suite)
    options = RunOptions(tmp_path / "small.yaml", out=tmp_path / "made", device="cpu", rates=written(tmp_path, **said))
    with pytest.raises(SuiteError, match=words):
        run(options)
    assert not (tmp_path / "made").exists()
