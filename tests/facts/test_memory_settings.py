from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.memory_settings import MemorySettings, Swap
from clusterbench.facts.pressure import Pressure, Stalled
from tests.facts.healthy import memory_settings
from tests.facts.machine import Machine

SWAPS = """\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/swap.img                               file\t\t8388604\t\t524\t\t-2
/dev/zram0                              partition\t1048572\t0\t\t100
"""


def planted(folder, **files):
    machine = Machine()
    memory_settings.plant(machine)
    machine.files |= files
    machine.write(folder)
    return Files(folder)


def test_settings_are_read_in_the_kernels_words(tmp_path):
    read = MemorySettings.read(planted(tmp_path))
    assert (read.transparent_huge_pages, read.numa_balancing, read.reserved_huge_pages) == ("madvise", 0, 0)
    assert (read.huge_page_bytes, read.total_bytes) == (2**21, 2_113_412_380 * 1024)
    assert (read.swaps, read.unread) == ((), {})


def test_swap_is_in_bytes_with_what_is_used(tmp_path):
    read = MemorySettings.read(planted(tmp_path, **{"/proc/swaps": SWAPS}))
    assert read.swaps[0] == Swap("/swap.img", "file", 8388604 * 1024, 524 * 1024)
    assert read.swaps[1].path == "/dev/zram0"


def test_a_size_that_no_memory_has_is_not_read(tmp_path):
    """JSON is refused with a whole number of more than 20 digits, and with it all that the host said."""
    row = f"/swap.img file {'9' * 30} 0 -2\n"
    assert MemorySettings.read(planted(tmp_path, **{"/proc/swaps": SWAPS.splitlines()[0] + "\n" + row})).swaps == ()


def test_without_the_file_it_is_not_known_whether_there_is_swap(tmp_path):
    read = MemorySettings.read(Files(tmp_path))
    assert read.swaps is None
    assert read.unread["/proc/swaps"] == "is not there"


def test_pressure_is_a_fraction_of_time(tmp_path):
    said = "some avg10=1.53 avg60=0.87 avg300=0.22 total=55371\nfull avg10=0.10 avg60=0.05 avg300=0.01 total=5537"
    read = Pressure.read(planted(tmp_path, **{"/proc/pressure/memory": said}))
    assert read.memory_some == Stalled(0.0153, 0.0087, 0.0022)
    assert read.memory_full.last_60_s == 0.0005
    assert read.cpu_some == Stalled(0, 0, 0)
