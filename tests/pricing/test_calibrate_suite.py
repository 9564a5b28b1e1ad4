"""``suites/calibrate.yaml``: its steps are those a calibration wants, probes become rates, and runs of it are read."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.cluster import Cluster, accelerators
from clusterbench.derive import read
from clusterbench.derive.prices import priced_job
from clusterbench.expectation import Expectation
from clusterbench.planning import make_plan
from clusterbench.pricing import step_seconds
from clusterbench.pricing.calibrate import Run, chosen, configuration, fit, most_narrowing
from clusterbench.pricing.probes import Probe, probed_rates
from clusterbench.pricing.profiles import PricedJob, named_profile
from clusterbench.pricing.rates import KnownRates
from clusterbench.pricing.rates_file import read_rates
from clusterbench.pricing.typical import typical_rates
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import Case
from tests.report.synthetic import observation, outcome

SUITE = Path(__file__).parents[2] / "suites" / "calibrate.yaml"
H100 = "NVIDIA H100 80GB HBM3"
CARD = accelerators()["h100-sxm-80gb"]
TYPICAL = typical_rates(CARD, 400e9)
# a fast host, so that what a chain of collectives takes is not hidden behind the calls of an eager step
TRUE: Mapping[str, float] = {
    "matmul": 600e12,
    "memory": 2.4e12,
    "operator_time": 6e-6,
    "half_size": 0.6e6,
    "collective_time": 40e-6,
    "pipeline_factor": 3.0,
    "p2p_time": 30e-6,
    "p2p_bandwidth": 40e9,
    "step_time": 40e-3,
}
BUSBW = {1: 330e9, 2: 180e9}
OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def true() -> KnownRates:
    rates = {
        name: Expectation(value, TYPICAL.by_key[name].unit, value, value, "file", "") for name, value in TRUE.items()
    }
    for nodes, value in BUSBW.items():
        rates |= {f"busbw[nodes={nodes},op={op}]": Expectation(value, "B/s", value, value, "file", "") for op in OPS}
    return TYPICAL.but(rates)


@cache
def planned(num_nodes: int) -> Any:
    return make_plan(load_suite(SUITE), Cluster(num_nodes, 8, "cuda", H100, hosts=("n1", "n2")[:num_nodes]))


def steps(num_nodes: int) -> dict[str, PricedJob]:
    plan = planned(num_nodes)
    jobs = {
        case.id: priced_job(case.point, "cuda", plan.cluster) for case in plan.cases if case.benchmark == "train_step"
    }
    return {name: job for name, job in jobs.items() if isinstance(job, PricedJob)}


# The suite


def test_its_steps_are_those_that_a_calibration_wants():
    jobs = [*steps(2).values()]
    taken = chosen([configuration(job) for job in jobs])
    assert sorted(taken) == [*range(8)]
    assert [jobs[number].num_nodes for number in taken] == [1] * 5 + [2] * 3
    assert len(steps(1)) == 5


def test_every_step_of_it_fits_the_card_and_can_be_priced():
    profile = named_profile("ours")
    for name, job in steps(2).items():
        assert profile.objection(job) is None, name
        assert max(sum(of.values()) for of in profile.memory(job)) < 0.9 * 80e9, name


# Probes


def probe(benchmark: str, value: float, size_bytes: float = 0, nodes: int = 1, ranks: int = 8, **more: Any) -> Probe:
    dtype = more.get("dtype", "bfloat16")
    return Probe(benchmark, f"{benchmark}/{size_bytes}", dtype, nodes, ranks, size_bytes, value, value, value)


def by_size(benchmark: str, nodes: int) -> list[Probe]:
    rates, ranks = true().rates, 8 * nodes
    sizes = [2.0**power for power in range(12, 29, 4)]
    return [
        probe(benchmark, rates.collective_s(benchmark, size, ranks, nodes, 1), size, nodes, ranks) for size in sizes
    ]


def test_bandwidth_and_half_size_of_a_made_up_network_are_found_again():
    probes = [each for op in OPS for nodes in (1, 2) for each in by_size(op, nodes)]
    found = probed_rates(probes, TYPICAL, "bfloat16", "run r")
    for op in OPS:
        for nodes, value in BUSBW.items():
            rate = found[f"busbw[nodes={nodes},op={op}]"]
            assert rate.value == pytest.approx(value, rel=1e-6)
            assert rate.spread == pytest.approx(1.02)
            assert (rate.origin, rate.source) == ("calibrated", f"{op} by size, run r")
    assert found["half_size"].value == pytest.approx(TRUE["half_size"], rel=1e-6)


def test_times_that_scatter_are_a_wider_interval():
    wild = [
        replace(each, value=each.value * (1.3 if number % 2 else 0.8))
        for number, each in enumerate(by_size("all_gather", 1))
    ]
    found = probed_rates(wild, TYPICAL, "bfloat16", "r")["busbw[nodes=1,op=all_gather]"]
    assert 1.2 < found.spread < 2
    assert found.low < BUSBW[1] < found.high


def test_nodes_that_were_not_probed_keep_what_was_believed():
    found = probed_rates(by_size("all_gather", 1), TYPICAL, "bfloat16", "r")
    key = "busbw[nodes=2,op=all_gather]"
    assert found[key] == TYPICAL.by_key[key]
    assert TYPICAL.but(found).by_key["busbw[nodes=1,op=all_gather]"].origin == "calibrated"


def test_two_sizes_make_no_line():
    found = probed_rates(by_size("all_gather", 1)[:2], TYPICAL, "bfloat16", "r")
    assert [*found] == ["collective_time"]


def test_products_in_another_dtype_or_of_fewer_ranks_say_nothing():
    products = [probe("matmul", value) for value in (400e12, 640e12)]
    others = [probe("matmul", 60e12, dtype="float32"), probe("matmul", 700e12, ranks=1)]
    found = probed_rates([*products, *others], TYPICAL, "bfloat16", "r")["matmul"]
    assert (found.low, found.value) == (400e12, pytest.approx(0.85 * 640e12))
    assert found.high == pytest.approx(640e12)


def test_a_launch_and_the_smallest_collective_are_lower_ends():
    probes = [probe("kernel_launch", 15e-6), probe("all_reduce", 24e-6, 4096)]
    found = probed_rates(probes, TYPICAL, "bfloat16", "r")
    assert (found["operator_time"].low, found["operator_time"].value) == (pytest.approx(15e-6 / 1.02), 15e-6)
    assert found["collective_time"].low == pytest.approx(3e-6)
    assert found["collective_time"].value == TYPICAL.by_key["collective_time"].value


def test_messages_within_a_node_leave_open_what_those_between_nodes_take():
    messages = [probe("send_recv", 30e-6 + size / 40e9, size) for size in (2.0**12, 2.0**20, 2.0**28)]
    within = probed_rates(messages, TYPICAL, "bfloat16", "r")
    between = probed_rates([replace(each, num_nodes=2) for each in messages], TYPICAL, "bfloat16", "r")
    for found in (within, between):
        assert found["p2p_time"].value == pytest.approx(30e-6)
        assert found["p2p_bandwidth"].value == pytest.approx(40e9)
    assert between["p2p_bandwidth"].spread < 1.03
    assert within["p2p_bandwidth"].low == TYPICAL.by_key["p2p_bandwidth"].low


# Which run would tell most


def test_the_run_that_narrows_most_is_one_whose_rates_are_not_known_yet():
    profile, rates = named_profile("ours"), true().rates
    works = {name: profile.work(job) for name, job in steps(2).items()}
    on_one = [Run(name, work, step_seconds(work, rates)) for name, work in works.items() if "/1n" in name]
    rest = {name: work for name, work in works.items() if "/2n" in name}
    found = most_narrowing(rest, TYPICAL, fit(on_one, TYPICAL))
    assert found is not None
    assert found.name == "train_step/2n16/pp2-dp2-tp4+sp"
    before, after = found.factors["pipeline_factor"]
    assert after < 0.5 * before
    assert f"{found.name} would narrow rates most: pipeline_factor from a factor of {before:.2f} to" in found.words
    done = [*on_one, Run(found.name, works[found.name], step_seconds(works[found.name], rates))]
    left = fit(done, TYPICAL)
    place = [*left.names].index("pipeline_factor")
    assert left.covariance[place][place] ** 0.5 < fit(on_one, TYPICAL).covariance[place][place] ** 0.5
    assert most_narrowing({}, TYPICAL, left) is None


# A run of it on a made-up machine


def time_of(case: Case, jobs: Mapping[str, PricedJob]) -> float:
    rates, nodes = true().rates, case.num_nodes
    if case.benchmark == "train_step":
        return step_seconds(named_profile("ours").work(jobs[case.id]), rates)
    if case.benchmark == "matmul":
        return 2 * case.point["size"] ** 3 / (rates.matmul / 0.85)
    if case.benchmark == "send_recv":
        return rates.p2p_time + case.point["size_bytes"] / rates.p2p_bandwidth
    if case.benchmark in OPS:
        return rates.collective_s(case.benchmark, case.point["size_bytes"], case.world_size, nodes, 1)
    if case.benchmark == "device_copy":
        return 2 * case.point["size_bytes"] / (rates.memory / 0.83)
    return 5e-3  # 1,000 launches


def run_on(folder: Path, num_nodes: int, slower: float = 1.0) -> Path:
    plan, jobs = planned(num_nodes), steps(num_nodes)
    gpus = [{"name": H100, "driver_version": "570.86"}] * 8
    environment = {"hosts": {host: {"gpus": gpus} for host in plan.cluster.hosts}}
    run = RunFolder.create(folder / f"on{num_nodes}", SUITE.read_bytes(), plan, environment)
    for case in plan.cases:
        if case.benchmark != "cpu_memory":
            time_s = slower * time_of(case, jobs)
            seconds = [[time_s * (1 + 0.001 * (number % 3)) for number in range(5)]] * case.world_size
            run.record(outcome(case), observation(case, seconds, hosts=plan.cluster.hosts[: case.num_nodes]))
    return run.path


def verb(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def said(done: Any) -> str:
    return " ".join(done.stderr.replace("\n#", "").split())


def test_a_run_on_two_nodes_gives_rates_that_price_and_advise_take(tmp_path):
    run, rates = run_on(tmp_path, 2), tmp_path / "rates.yaml"
    done = verb("calibrate", run, "--nics", "8x400Gb", "--out", rates)
    assert done.exit_code == 0, done.output
    assert said(done).count("measured") == 8
    assert "from probes: matmul, memory, busbw, half_size, collective_time, p2p_time, p2p_bandwidth" in said(done)
    assert "would narrow" not in said(done), "there is nothing else to run"
    found = read_rates(rates, TYPICAL)
    for name in ("matmul", "collective_time", "pipeline_factor", "half_size", "p2p_bandwidth"):
        assert found.by_key[name].value == pytest.approx(TRUE[name], rel=0.15), name
        assert found.by_key[name].low <= TRUE[name] <= found.by_key[name].high, name
    assert found.by_key["matmul"].spread < TYPICAL.by_key["matmul"].spread
    assert found.machine.gpu == "h100-sxm-80gb"
    priced = verb("price", run, "--rates", rates)
    assert priced.exit_code == 0
    assert "100% within the interval of 80 %" in said(priced)
    advised = verb(
        "advise", "--shape", "llama-8b", "--gpu", H100, "--num-nodes", 2, "--tokens", "2^20", "--rates", rates
    )
    assert advised.exit_code == 0, advised.output
    assert "# rates: datasheet of h100-sxm-80gb x typical, calibrated by 8 steps" in advised.stdout
    elsewhere = ("advise", "--shape", "llama-8b", "--gpu", "NVIDIA H200", "--tokens", "2^20", "--rates", rates)
    other = verb(*elsewhere)
    assert (other.exit_code, "it has gpu h100-sxm-80gb, and this one gpu h200-sxm-141gb" in other.stderr) == (2, True)
    assert verb(*elsewhere, "--accept-other", "gpu").exit_code == 0
    idle = verb(*elsewhere[:-2], "--accept-other", "gpu")
    assert (idle.exit_code, "--accept-other has no effect without --rates" in idle.stderr) == (2, True)


def test_a_run_that_was_given_rates_is_priced_by_them_as_its_report_does(tmp_path):
    """The report had 1.537 s of a step, 'price' of the same run 1.504 s and 'None of its rates was measured here'."""
    run = run_on(tmp_path, 2)
    assert verb("calibrate", run, "--out", tmp_path / "rates.yaml").exit_code == 0
    by_option = verb("price", run, "--rates", tmp_path / "rates.yaml")
    (run / "rates.yaml").write_bytes((tmp_path / "rates.yaml").read_bytes())
    priced = verb("price", run)
    assert priced.stdout == by_option.stdout
    assert "# rates: datasheet of h100-sxm-80gb x typical, calibrated by 8 steps" in priced.stderr
    reported = {row.case: row.expected for row in read(RunFolder.open(run)).rows_of("step_time")}
    steps_s = {row["model"]: float(row["step_s"] or 0) for row in csv.DictReader(priced.stdout.splitlines())}
    assert sum(map(bool, steps_s.values())) == 8
    assert {name: reported[name] for name, step_s in steps_s.items() if step_s} == {
        name: pytest.approx(step_s, rel=1e-5) for name, step_s in steps_s.items() if step_s
    }
    other = (run / "rates.yaml").read_text().replace("570.86", "590.10")
    (run / "rates.yaml").write_text(other)
    unlike = verb("price", run)
    assert "NOT MEASURED" in said(unlike)
    assert "rates.yaml is of another machine: it has driver 590.10, and this one driver 570.86" in said(unlike)
    assert verb("price", run, "--accept-other", "driver").stdout == by_option.stdout


def test_of_a_wrong_result_no_time_is_taken(tmp_path):
    """Wrong in one of two repeats and beyond its data sheet in the other: 'measured 204.761 ms, priced +269.8%'."""
    run = run_on(tmp_path, 2)
    right = verb("calibrate", run, "--out", tmp_path / "right.yaml")
    assert right.exit_code == 0, right.output
    plan = planned(2)
    step = next(case for case in plan.cases if case.id == "train_step/1n8/dp8")
    product = next(case for case in plan.cases if case.id.startswith("matmul/1n8/8192"))
    for case in (step, product):
        RunFolder.open(run).record(outcome(case, "wrong", repeat=1, reason="37 elements differ"), None)
    done = verb("calibrate", run, "--out", tmp_path / "rates.yaml")
    assert done.exit_code == 0, done.output
    assert said(done).count("measured") == 7
    assert "not taken: train_step/1n8/dp8: its result was wrong" in said(done)
    of_products = read_rates(tmp_path / "rates.yaml", TYPICAL).by_key["matmul"].source
    assert "products of 3 shapes" in of_products
    assert "products of 4 shapes" in read_rates(tmp_path / "right.yaml", TYPICAL).by_key["matmul"].source
    (row,) = [row for row in csv.DictReader(verb("price", run).stdout.splitlines()) if row["model"] == step.id]
    assert (row["measured_step_s"], row["reason"]) == ("", "its result was wrong")


def test_what_a_run_probed_itself_stands_in_place_of_what_an_earlier_one_did(tmp_path):
    """Of a machine that became slower by half the earlier bandwidths stayed, though 'from probes: busbw' was said; and
    beside each interval stood that of data sheets, as what was known before."""
    earlier, rates, again = tmp_path / "earlier.yaml", tmp_path / "rates.yaml", tmp_path / "again.yaml"
    assert verb("calibrate", run_on(tmp_path, 2), "--out", earlier).exit_code == 0
    (tmp_path / "now").mkdir()
    now = run_on(tmp_path / "now", 2, slower=1.5)
    assert verb("calibrate", now, "--out", rates).exit_code == 0
    done = verb("calibrate", now, "--rates", earlier, "--out", again)
    assert done.exit_code == 0, done.output
    known = read_rates(earlier, TYPICAL)
    assert f"p2p_bandwidth 1.02 ({known.by_key['p2p_bandwidth'].spread:.2f})" in said(done)
    for key, rate in read_rates(rates, TYPICAL).by_key.items():
        if key.startswith(("busbw", "half_size", "p2p")):
            assert read_rates(again, TYPICAL).by_key[key].value == pytest.approx(rate.value), key
    yours = tmp_path / "yours.yaml"
    yours.write_text("of: me\nrates:\n  p2p_bandwidth: 40 GB/s\n")
    done = verb("calibrate", now, "--rates", yours, "--out", again)
    assert done.exit_code == 0, done.output
    assert read_rates(again, TYPICAL).by_key["p2p_bandwidth"].value == 40e9
    assert "p2p_bandwidth" not in said(done).partition("from probes:")[2].partition("80 %")[0]


def test_a_run_on_one_node_gives_ranges_and_names_the_run_that_would_narrow_them_most(tmp_path):
    done = verb("calibrate", run_on(tmp_path, 1), "--nics", "8x400Gb", "--out", tmp_path / "rates.yaml")
    assert done.exit_code == 0, done.output
    assert said(done).count("measured") == 5
    assert "train_step/1n16/pp2-dp2-tp4+sp would narrow rates most: pipeline_factor from a factor of" in said(done)
    found = read_rates(tmp_path / "rates.yaml", TYPICAL)
    assert found.by_key["pipeline_factor"].spread > 3
    key = "busbw[nodes=2,op=all_gather]"
    assert (found.by_key[key].low, found.by_key[key].high) == (
        pytest.approx(TYPICAL.by_key[key].low),
        pytest.approx(TYPICAL.by_key[key].high),
    )
