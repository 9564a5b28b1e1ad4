"""``advise --table``: the whole ranking as a CSV, which ``price`` reads and prices alike."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clusterbench.cli import main

CLUSTER = ("--gpu", "h100-sxm-80gb", "--num-nodes", "2")
DENSE = ("--shape", "llama-8b", "--tokens", "2^21")
EXPERTS = ("--shape", "mixtral-8x7b", "--tokens", "2^21")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("model", "profile"),
    [(DENSE, "ours"), (EXPERTS, "ours"), (DENSE, "megatron_core")],
    ids=["dense", "experts", "other"],
)
def test_every_layout_that_fits_is_there_and_is_priced_alike_when_read_again(
    model: tuple[str, ...], profile: str, tmp_path: Path
) -> None:
    table, prices, how = tmp_path / "layouts.csv", tmp_path / "prices.csv", ("--nics", "8x400Gb", "--profile", profile)
    advised = run("advise", *model, *CLUSTER, *how, "--table", table)
    assert advised.exit_code == 0, advised.output
    ranked = rows(table)
    assert f"What fits: {len(ranked)} layouts" in advised.stdout
    assert [row["predicted_place"] for row in ranked] == [str(place + 1) for place in range(len(ranked))]
    again = run("price", table, *how, "--out", prices)
    assert again.exit_code == 0, again.output
    for row, price in zip(ranked, rows(prices), strict=True):
        for name in ("step_s", "low_s", "high_s", "memory_gb", "compute_s", "bubble_s", "not_validated"):
            assert row[f"predicted_{name}"] == price[name], (row["layout"], name)
        assert row["predicted_fit"] == price["fits"] != "does not fit"


def test_each_answer_of_two_networks_and_two_models_has_its_rows(tmp_path: Path) -> None:
    table = tmp_path / "layouts.csv"
    assert run("advise", *DENSE, "--shape", "llama-1b", *CLUSTER, "--table", table).exit_code == 0
    answers = [(row["model"], row["predicted_node_network_gb_s"]) for row in rows(table)]
    assert list(dict.fromkeys(answers)) == [
        ("llama-8b", "320"),
        ("llama-8b", "80"),
        ("llama-1b", "320"),
        ("llama-1b", "80"),
    ]


def test_a_table_is_not_written_over_what_is_read(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("gpu: h100-sxm-80gb\nnum_nodes: 1\n")
    done = run("advise", *DENSE, "--cluster", cluster, "--table", cluster)
    assert done.exit_code == 2
    assert f"--table {cluster} is the file of --cluster; name another one." in done.output
