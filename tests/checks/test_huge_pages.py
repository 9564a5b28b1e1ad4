from __future__ import annotations

import pytest

from clusterbench.checks.huge_pages import HugePages
from clusterbench.facts import Files
from clusterbench.facts.memory_settings import HUGE_PAGES, MEMINFO, MemorySettings
from tests.facts.machine import Machine, laptop, training

MEMORY = "MemTotal: 1048576 kB\nHugePages_Total: {}\nHugepagesize: 2048 kB\n"


def settings(folder, chosen="madvise", reserved=0):
    words = " ".join(f"[{word}]" if word == chosen else word for word in ("always", "madvise", "never"))
    Machine(files={HUGE_PAGES: words, MEMINFO: MEMORY.format(reserved)}).write(folder)
    return MemorySettings.read(Files(folder))


def test_always_is_noted(tmp_path):
    (fault,) = HugePages().judge(training(settings(tmp_path, "always"))).faults
    assert fault.what.startswith("transparent huge pages are given always")
    assert fault.evidence == f"{HUGE_PAGES}: always"


@pytest.mark.parametrize("chosen", ["madvise", "never"])
def test_those_that_are_asked_for_are_in_order(tmp_path, chosen):
    assert HugePages().judge(training(settings(tmp_path, chosen))).healthy == f"transparent huge pages: {chosen}"


def test_much_reserved_memory_is_noted(tmp_path):
    (fault,) = HugePages().judge(training(settings(tmp_path, reserved=512))).faults
    assert fault.what == "huge pages reserve 1 of 1 GiB of memory"
    assert fault.evidence == "/proc/meminfo: HugePages_Total: 512 of 2048 kB"


@pytest.mark.parametrize(("reserved", "faults"), [(51, 0), (52, 1)])
def test_a_tenth_may_be_reserved(tmp_path, reserved, faults):
    assert len(HugePages().judge(training(settings(tmp_path, reserved=reserved))).faults) == faults


def test_a_kernel_that_does_not_say_is_not_judged(tmp_path):
    (said,) = HugePages().judge_all([training(MemorySettings.read(Files(tmp_path)))]).values()
    assert said.unknown[0].why == f"{HUGE_PAGES} is not there"


def test_a_host_that_does_not_train_is_not_asked(tmp_path):
    assert HugePages().judge(laptop(settings(tmp_path, "always"))).not_applicable
