from __future__ import annotations

import pytest

from clusterbench.errors import SuiteError

# Forms of mlc 3.9 and 3.11 as people paste them.
MATRIX = """\
Intel(R) Memory Latency Checker - v3.11
Measuring idle latencies for random access (in ns)...
                Numa node
Numa node            0       1
       0          98.0   170.0
       1         171.0    97.0

Measuring Memory Bandwidths between nodes within system
Bandwidths are in MB/sec (1 MB/sec = 1,000,000 Bytes/sec)
Using all the threads from each core if Hyper-threading is enabled
Using Read-only traffic type
                Numa node
Numa node            0       1
       0        113139.4  {there}
       1        50916.6 {local}

Measuring Loaded Latencies for the system
 00000  261.65   225060.9
"""


def matrix(there=50923.4, local=113249.2):
    return MATRIX.format(there=there, local=local)


SLOW = matrix(local=84936.9)


def test_nodes_that_are_alike_are_in_order(examined):
    examination, kind = examined(matrix())
    assert (kind, examination.word) == ("mlc", "HEALTHY")
    assert examination.healthy[0].what == "2 NUMA nodes at 113 to 113 GB/s to their own memory"


@pytest.mark.parametrize(
    ("text", "where", "what", "line"),
    [
        (SLOW, 1, "reads its own memory at 84.9 GB/s, and its siblings theirs at 113.1 GB/s", 15),
        (
            matrix(there=30000.0),
            0,
            "reads the memory of node 1 at 30.0 GB/s, and is read from there at 50.9 GB/s",
            14,
        ),
    ],
)
def test_a_slow_node_is_found(examined, text, where, what, line):
    (found,) = examined(text)[0].found
    assert (found.name, found.severity, found.where) == ("memory_bandwidth", "warning", f"NUMA node {where}")
    assert (found.what, found.evidence.split(": ")[0]) == (what, f"said.txt:{line}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MATRIX.partition("Measuring Memory")[0], "the text has no matrix of bandwidth"),
        (matrix().partition(" 113249")[0] + "\n", "a row of the matrix is cut"),
        (matrix().partition("249.2")[0], "a row of the matrix is cut"),
        (
            "Measuring Memory Bandwidths between nodes within system\nNuma node 0 1\n0 30562.8 4795.3\n",
            "one NUMA node has no sibling that says how fast it should be",
        ),
    ],
)
def test_what_cannot_be_judged(examined, text, why):
    examination, _ = examined(text)
    assert (examination.found, examination.not_judged[0].why) == ((), why)


@pytest.mark.parametrize("text", [SLOW + matrix(), matrix() + SLOW])
def test_two_runs_in_one_text_are_not_one(examined, text):
    with pytest.raises(SuiteError, match="the text holds several runs of mlc: a file of each tells them apart"):
        examined(text)
