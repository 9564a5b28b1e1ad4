"""Which machine a figure is of: fields, where they come from, and that figures of another machine are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.cluster import accelerators
from clusterbench.errors import SuiteError
from clusterbench.expectation import Expectation
from clusterbench.fingerprint import FIELDS, Fingerprint, accepted_fields, fingerprint_of, nearest_machine
from clusterbench.pricing.calibrate import calibrated
from clusterbench.pricing.rates_file import rates_text, read_rates
from clusterbench.pricing.typical import typical_rates

PORT = {"state": "4: ACTIVE", "bits_per_s": 4e11, "link_layer": "InfiniBand"}
HOST = {
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "driver_version": "570.86"}] * 8,
    "cpu_model": "AMD EPYC 9654",
    "packages": {"torch": "2.13.0+cu130", "nvidia-nccl-cu13": "2.28.9", "clusterbench": "0.1.0"},
    "infiniband": [PORT] * 8,
    "network": [],
}
H100 = Fingerprint(
    gpu="h100-sxm-80gb",
    gpus_per_node="8",
    cpu="AMD EPYC 9654",
    driver="570.86",
    nccl="2.28.9",
    torch="2.13.0+cu130",
    network="8 x 400 Gb/s InfiniBand",
    step="1",
)
EXAMPLE = str(Path(__file__).parents[1] / "reports" / "examples" / "layouts_5d-cpu")


def test_every_field_comes_from_what_hosts_say_of_themselves():
    assert fingerprint_of({"hosts": {"a": HOST, "b": HOST}}, step=1) == H100
    assert set(FIELDS) == set(Fingerprint.__dataclass_fields__)
    assert fingerprint_of({}) == Fingerprint()


def test_what_workers_loaded_counts_and_not_what_is_installed():
    loaded = {"a": {"nccl": "2.27.3", "torch": "2.12.0"}}
    found = fingerprint_of({"hosts": {"a": HOST}, "loaded": loaded}, 1)
    assert (found.nccl, found.torch) == ("2.27.3", "2.12.0")


def test_hosts_that_differ_are_a_machine_of_their_own():
    lost_port = {**HOST, "infiniband": [*[PORT] * 7, {**PORT, "state": "1: DOWN"}]}
    found = fingerprint_of({"hosts": {"a": HOST, "b": lost_port}}, 1)
    assert found.network == "7 x 400 Gb/s InfiniBand and 8 x 400 Gb/s InfiniBand"
    assert found.unlike(H100) == ("network",)


def test_a_host_without_gpus_says_so():
    assert fingerprint_of({"hosts": {"a": {"gpus": []}}}) == Fingerprint(gpu="none", gpus_per_node="0")


def test_only_what_both_know_is_compared():
    assert Fingerprint(gpu="h100-sxm-80gb").unlike(H100) == ()
    assert Fingerprint(gpu="h100-sxm-80gb").not_compared(H100) == FIELDS[1:]
    assert replace(H100, driver="575.1", nccl="").unlike(H100) == ("driver",)


def test_another_machine_is_refused_with_the_field_that_differs():
    other = replace(H100, driver="575.1")
    with pytest.raises(SuiteError) as error:
        nearest_machine([replace(H100, gpu="h200-sxm-141gb", nccl="2.27"), other], H100, (), "base.jsonl")
    assert str(error.value) == (
        "base.jsonl is of another machine: the nearest recorded has driver 575.1, and this one driver 570.86.\n"
        "hint: --accept-other driver uses it all the same; figures of this machine are better"
    )
    assert error.value.exit_code == 2
    with pytest.raises(SuiteError, match="--accept-other driver,nccl uses it"):
        nearest_machine([replace(other, nccl="2.27")], H100, ("driver",), "base.jsonl")


def test_another_machine_is_used_where_its_fields_are_accepted_and_the_same_first():
    other = replace(H100, driver="575.1")
    assert nearest_machine([replace(other, gpu="h200-sxm-141gb"), other], H100, ("driver",), "") == 1
    assert nearest_machine([other, H100], H100, (), "") == 1
    with pytest.raises(SuiteError, match="--accept-other driver has no effect"):
        nearest_machine([other, H100], H100, ("driver",), "base.jsonl")


def test_of_two_that_are_equally_near_the_one_with_the_same_gpu_is_nearer():
    far, near = replace(H100, gpu="h200-sxm-141gb"), replace(H100, torch="2.12")
    assert nearest_machine([far, near], H100, ("torch",), "") == 1


def test_a_field_that_is_none_is_said():
    assert accepted_fields("driver, nccl") == ("driver", "nccl")
    assert accepted_fields(None) == ()
    with pytest.raises(SuiteError, match=r"--accept-other 'drivr' is no field\. Did you mean 'driver'\?"):
        accepted_fields("drivr")


# Rates


@pytest.fixture
def typical():
    return typical_rates(accelerators()["h100-sxm-80gb"], 400e9)


def test_a_file_of_rates_says_of_which_machine_it_is_and_is_refused_on_another(typical, tmp_path):
    file = tmp_path / "rates.yaml"
    file.write_text(rates_text(replace(typical, machine=H100)))
    assert read_rates(file, typical, typical.machine).machine == H100
    with pytest.raises(SuiteError, match=r"it has driver 570\.86, and this one driver 575\.1"):
        read_rates(file, typical, replace(H100, driver="575.1"))
    assert read_rates(file, typical, replace(H100, driver="575.1"), ("driver",)).machine == H100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2\nrates:\n  memory: 3 TB/s\n", ":1: 'version: 2' is not 1, which this clusterbench reads.\nhint: "),
        ("num_rates: 2\nrates:\n  memory: 3 TB/s\n", ":1: damaged: 'num_rates: 2', but there are 1.\nhint: write it"),
        ("machine:\n  gpuu: a\nrates:\n  memory: 3 TB/s\n", ":2: unknown key 'gpuu'. Did you mean 'gpu'?"),
        ("machine: [a]\nrates:\n  memory: 3 TB/s\n", ":1: 'machine' is keys and values: gpu, gpus_per_node"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_version_is_said_with_place_and_remedy(typical, tmp_path, text, said):
    file = tmp_path / "rates.yaml"
    file.write_text(text)
    with pytest.raises(SuiteError) as error:
        read_rates(file, typical)
    assert f"{file}{said}" in str(error.value)


def test_a_file_that_was_cut_off_is_damaged(typical, tmp_path):
    file = tmp_path / "rates.yaml"
    file.write_text("\n".join(rates_text(typical).splitlines()[:-4]) + "\n")
    with pytest.raises(SuiteError, match="damaged: 'num_rates: "):
        read_rates(file, typical)


def test_what_is_believed_more_stays(typical):
    """file, baseline, calibrated, typical, datasheet: in this order."""
    said = Expectation(600e12, "FLOP/s", 600e12, 600e12, "file", "")
    fitted = Expectation(500e12, "FLOP/s", 450e12, 550e12, "calibrated", "")
    for first, second in ((said, fitted), (fitted, said)):
        assert typical.but({"matmul": first}).but({"matmul": second}).by_key["matmul"] == said
    again = Expectation(510e12, "FLOP/s", 450e12, 550e12, "calibrated", "")
    assert typical.but({"matmul": fitted}).but({"matmul": again}).by_key["matmul"] == again


def test_a_rate_that_a_person_wrote_down_is_not_fitted(typical):
    said = Expectation(600e12, "FLOP/s", 600e12, 600e12, "file", "mine:3")
    assert calibrated([], typical.but({"matmul": said}), "nanotron").by_key["matmul"] == said


def test_rates_of_a_run_name_its_machine_and_are_refused_for_another(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, arguments)

    rates = tmp_path / "rates.yaml"
    assert run("calibrate", EXAMPLE, "--out", str(rates)).exit_code == 0
    written = rates.read_text()
    assert 'machine:\n  gpu: "none"\n  gpus_per_node: "0"\n  cpu: "AMD EPYC"\n' in written
    assert run("price", EXAMPLE, "--rates", str(rates)).exit_code == 0
    rates.write_text(written.replace("2.13.0+cpu", "2.12.0+cpu"))
    refused = run("price", EXAMPLE, "--rates", str(rates))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "it has torch 2.12.0+cpu, and this one torch 2.13.0+cpu." in refused.stderr
    taken = run("price", EXAMPLE, "--rates", str(rates), "--accept-other", "torch")
    assert taken.exit_code == 0
    assert "torch 2.12.0+cpu" in taken.stderr
    idle = run("price", EXAMPLE, "--accept-other", "torch")
    assert (idle.exit_code, idle.stderr) == (
        2,
        "error: --accept-other has no effect without --rates, whose machine it is about.\n",
    )
