from __future__ import annotations

import pytest

# open-mpi/hwloc, tests/hwloc/linux/64amd64-4s2n4ca2co.console, in part: node 5 has 8 GiB, the others 16.
VERBOSE = """\
Machine (P#0 total=120GiB)
  Package L#2 (P#2 total=24GiB CPUModel="AMD Opteron(TM) Processor 6274")
    Group0 L#4 (total=16GiB)
      NUMANode L#4 (P#4 local=16GiB total=16GiB)
      L3Cache L#4 (size=6144KiB linesize=64 ways=64)
        PU L#32 (P#32)
    Group0 L#5 (total=8192MiB)
      NUMANode L#5 (P#5 local=8192MiB total=8192MiB)
      L3Cache L#5 (size=6144KiB linesize=64 ways=64)
        PU L#40 (P#40)
"""
SHORT = """\
Machine (1007GB total)
  Package L#0
    NUMANode L#0 (P#0 503GB)
    L3 L#0 (32MB)
      L2 L#0 (512KB) + L1d L#0 (32KB) + L1i L#0 (32KB) + Core L#0
        PU L#0 (P#0)
  Package L#1
    NUMANode L#1 (P#1 {memory})
    L3 L#1 (32MB)
      L2 L#1 (512KB) + L1d L#1 (32KB) + L1i L#1 (32KB) + Core L#1 + PU L#1 (P#1)
  HostBridge
    PCI 01:00.0 (3D)
      GPU "nvml0"
"""
TIERS = """\
Machine (96GiB total)
  Package L#0
    NUMANode L#0 (P#0 64GiB)
    NUMANode(GPUMemory) L#1 (P#1 32GiB)
  Package L#1
    NUMANode L#2 (P#2 64GiB)
"""
LESS = SHORT.format(memory="441GB")


def test_a_node_with_less_memory_than_its_siblings_is_found(examined):
    examination, kind = examined(VERBOSE)
    assert kind == "lstopo"
    (found,) = examination.found
    assert (found.name, found.where) == ("numa_memory", "NUMA node 5")
    assert found.what == "has 8 GiB of memory, and another node 16 GiB"
    assert found.evidence == "said.txt:8: NUMANode L#5 (P#5 local=8192MiB total=8192MiB)"


def test_nodes_that_are_alike_are_in_order_and_an_eighth_less_is_not(examined):
    assert examined(SHORT.format(memory="503GB"))[0].word == "HEALTHY"
    assert examined(LESS)[0].found[0].what == "has 441 GiB of memory, and another node 503 GiB"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TIERS, "not all nodes have CPUs and one kind of memory, and how much the others should have is not known"),
        (f"{LESS}  Group L#2 (total=1GB)\n    NUMANode L#2 (P#2 1GB)\n", "not all nodes have CPUs and one kind of"),
        (
            SHORT[: SHORT.index("  Package L#1")],
            "one NUMA node has no sibling that says how much memory it should have",
        ),
    ],
)
def test_tiers_and_a_single_node_are_not_judged(examined, text, why):
    examination, _ = examined(text)
    assert examination.found == ()
    assert examination.not_judged[0].why.startswith(why)
