from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from datetime import date

import pytest

from clusterbench.doctor.env import facts
from clusterbench.doctor.host_page import host_page
from tests.doctor.page_parts import section, words
from tests.doctor.test_env import HOST
from tests.facts.healthy import nvlinks

TODAY = date(2026, 11, 24)


def env(*given):
    return subprocess.run(
        [sys.executable, "-m", "clusterbench", "env", *given], capture_output=True, text=True, check=False
    )


def parts(html, kind):
    """The words of each device of a kind."""
    return [words(part) for part in re.findall(rf'<li class="device {kind}">(.*?)</li>', html, re.DOTALL)]


def test_every_fact_and_variable_of_the_text_is_there():
    html = host_page(HOST, TODAY)
    said = section(html, "facts")
    assert [f"{name} {value}" for name, value in facts(HOST) if f"{name} {' '.join(value.split())}" not in said] == []
    assert section(html, "variables") == "Recorded variables NCCL_DEBUG INFO NCCL_NET_AUTH [removed]"


def test_devices_stand_in_their_numa_node_behind_their_bridges():
    nodes = [words(node) for node in re.findall(r'<article class="node">(.*?)</article>', host_page(HOST, TODAY), re.S)]
    link = "at most x16 at 32.0 GT/s PCIe"
    assert nodes == [
        "NUMA node 0, CPUs 0-55 PCIe bridge 0000:15:01.0 > 0000:16:00.0 "
        f"PCIe bridge 0000:17:00.0 GPU 0 0000:18:00.0 {link} nearest RDMA card: mlx5_0 "
        f"PCIe bridge 0000:17:01.0 network mlx5_0 0000:1a:00.0 {link}, 400 Gb/sec (4X NDR)",
        f"NUMA node 1, CPUs 56-111 PCIe bridge 0000:95:01.0 GPU 1 0000:98:00.0 {link} "
        f"PCIe bridge 0000:99:01.0 network mlx5_1 0000:9a:00.0 {link}, 400 Gb/sec (4X NDR)",
    ]


def test_gpus_and_cards_are_told_apart():
    html = host_page(HOST, TODAY)
    assert [part.split("  ")[0][:5] for part in parts(html, "gpu")] == ["GPU 0", "GPU 1"]
    assert [part[:14] for part in parts(html, "nic")] == ["network mlx5_0", "network mlx5_1"]


def test_nvlinks_that_are_down_are_marked():
    said = asdict(nvlinks.facts(gpus=(nvlinks.links(0), nvlinks.links(1), nvlinks.links(2, down=(17,)))))
    html = host_page({**HOST, "facts": {"nvlinks": json.loads(json.dumps(said))}}, TODAY)
    assert "GPU 0, 1 18 up, NVLink 4.0" in section(html, "devices")
    assert parts(html, "down") == ["GPU 2 17 up, link 17 down, NVLink 4.0"]


def test_a_host_that_shows_nothing_says_so():
    html = host_page({}, TODAY)
    assert "the kernel shows neither NUMA nodes nor PCIe devices here." in section(html, "devices")
    assert section(html, "variables") == ""


def test_words_of_a_host_stay_words_and_nothing_is_loaded():
    html = host_page({**HOST, "variables": {"NCCL_DEBUG": "<script>alert(1)</script>"}}, TODAY)
    assert "<script" not in html
    assert not re.search(r'(?:src|href)="(?!#)', html)


def test_the_verb_writes_the_page_beside_what_it_prints(tmp_path):
    path = tmp_path / "host.html"
    path.write_text("old")
    done = env("--page", str(path))
    assert done.returncode == 0, done.stderr
    first = " ".join(done.stdout.splitlines()[0].split())
    assert first in section(path.read_text(), "facts")
    assert [each.name for each in tmp_path.iterdir()] == ["host.html"]


def test_no_secret_of_this_shell_is_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_NET_AUTH_TOKEN", "s3cret-of-this-shell")
    done = env("--page", str(tmp_path / "host.html"))
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "host.html").read_text()
    assert "NCCL_NET_AUTH_TOKEN" in html
    assert "s3cret-of-this-shell" not in html


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none/page.html", "error: --page none/page.html cannot be written: No such file or directory."),
        ("/", "'--page': File '/' is a directory"),
    ],
)
def test_a_page_that_cannot_be_written_is_a_mistake(path, message):
    done = env("--page", path)
    assert (done.returncode, message in done.stderr, done.stdout) == (2, True, "")
