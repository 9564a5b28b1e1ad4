import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench.engine.compat import pci_address
from clusterbench.engine.near_cpus import PCI, near_cpus

ADDRESS = "0000:dc:00.0"


def card(folder: Path, local: str | None) -> Path:
    if local is not None:
        (folder / "local_cpulist").write_text(f"{local}\n")
    return folder


@pytest.mark.parametrize(
    ("local", "usable", "near"),
    [
        ("48-95,144-191", range(192), [*range(48, 96), *range(144, 192)]),
        ("48-95,144-191", range(40, 50), [48, 49]),  # a cpuset that reaches into both nodes
        ("48-95,144-191", range(8), range(8)),  # a launcher has bound it to the other socket: check 68 says so
        ("0-191", range(192), range(192)),  # no node is said of the card, as in most virtual machines
        ("", range(8), range(8)),
        ("near", range(8), range(8)),
        (None, range(8), range(8)),
    ],
)
def test_a_rank_has_the_cpus_of_its_gpus_node_that_it_may_use(
    local: str | None, usable: range, near: Any, tmp_path: Path
) -> None:
    assert near_cpus(card(tmp_path, local), {*usable}) == {*near}


@pytest.mark.parametrize(("usable", "near"), [(range(40, 54), range(48, 54)), (range(40, 53), range(40, 53))])
def test_cards_with_less_than_two_cpus_each_go_anywhere(usable: range, near: range, tmp_path: Path) -> None:
    cards = []
    for number, local in enumerate(["0-47", "0-47", "48-95", "48-95", "48-95"]):
        (folder := tmp_path / str(number)).mkdir()
        cards.append(card(folder, local))
    assert near_cpus(cards[-1], {*usable}, cards) == {*near}


def test_a_card_that_the_kernel_does_not_show_changes_nothing(tmp_path: Path) -> None:
    assert near_cpus(tmp_path / ADDRESS, {0, 1}) == {0, 1}


def test_the_address_is_as_the_kernel_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(pci_domain_id=0, pci_bus_id=220, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    assert pci_address(torch.device("cuda", 3)) == ADDRESS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_kernel_shows_the_gpu_at_that_address() -> None:
    folder = PCI / pci_address(torch.device("cuda", 0))
    assert (folder / "vendor").read_text().strip() == "0x10de"


BOUND = """
import os, sys, threading
from pathlib import Path
from clusterbench.engine import near_cpus
near_cpus.FEWEST = 1
go = threading.Event()
threading.Thread(target=go.wait).start()
near_cpus.stay_near(Path(sys.argv[1]), [])
print([sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")])
go.set()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, to be kept on one")
def test_all_threads_stay(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", BOUND, str(card(tmp_path, str(last)))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{[[last]] * 2}\n"
