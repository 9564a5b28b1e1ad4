from __future__ import annotations

import json

import pytest

# Found by its text in an index of public GitHub files, which names no repository: IOR 3.3.0, 8 tasks on one node.
RUN = """\
IOR-3.3.0: MPI Coordinated Test of Parallel I/O
Began               : Sat Mar 27 15:44:43 2021

Options:
api                 : POSIX
apiVersion          :
test filename       : testFile
access              : single-shared-file
type                : independent
segments            : 1
ordering in a file  : sequential
ordering inter file : no tasks offsets
nodes               : 1
tasks               : 8
clients per node    : 8
repetitions         : 1
xfersize            : 262144 bytes
blocksize           : 1 MiB
aggregate filesize  : 8 MiB

Results:

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     912.40     4282       0.001868    1024.00    256.00     0.001203   0.007473   0.000973   0.008768   0
read      495.76     2259.33    0.000031    1024.00    256.00     0.015838   0.014163   0.014007   0.016137   0
remove    -          -          -           -          -          -          -          -          0.006066   0
Max Write: 912.40 MiB/sec (956.72 MB/sec)
Max Read:  495.76 MiB/sec (519.84 MB/sec)

Summary of all tests:
Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s)
write         912.40     912.40     912.40       0.00    3649.62    3649.62    3649.62       0.00    0.00877
"""
# hpc/ior, issue 22: IOR 3.1.0, whose read found other data.
OLD = """\
IOR-3.1.0: MPI Coordinated Test of Parallel I/O

Test 0 started: Wed Dec  6 13:20:47 2017
Summary:
\tapi                = POSIX
\ttest filename      = ./test.data
\taccess             = single-shared-file
\tclients            = 16 (8 per node)
\trepetitions        = 2
\txfersize           = 80 MiB
\tblocksize          = 80 MiB
\taggregate filesize = 80 MiB

access    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ---------- ---------  --------   --------   --------   --------   ----
write     2328.29    81920      81920      0.000387   0.033962   0.000010   0.034360   0
"""
# VI4IO/io-500-dev, site-configs/kaust-georgios: version 2.10.3 has a mark behind its rows.
MARKED = OLD.replace("0.034360   0\n", "0.034360   0    XXCEL\n")
# hpc/ior, issue 495: a file that is not written to its end, since the time was up.
STONEWALL = (
    RUN[: RUN.index("Max Write")]
    .replace("8 MiB\n", "1000 GiB\nstonewallingTime    : 60\n")
    .replace("read      495.76", "read      1495.76")
)
WRONG = "WARNING: Incorrect data on read (5242880 errors found).\n"
# hpc/ior, issue 427.
ERROR = 'ior ERROR: open64("testFile.00000128", 2) failed, errno 2, No such file or directory (aiori-POSIX.c:473)\n'


def _ends(tmp_path):
    outcomes = (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()
    return [(each["status"], each["reason"]) for each in map(json.loads, outcomes)]


def _notes(tmp_path):
    return json.loads((tmp_path / "run" / "environment.json").read_text())["imported"]["notes"]


def test_each_phase_is_a_case_in_binary_megabytes(imported, tmp_path):
    rows = imported(RUN)
    assert rows == {
        ("1n8/IOR_write", "bandwidth"): (912.40 * 2**20, "imported from said.txt:25"),
        ("1n8/IOR_write", "message_rate"): (4282, "imported from said.txt:25"),
        ("1n8/IOR_read", "bandwidth"): (495.76 * 2**20, "imported from said.txt:26"),
        ("1n8/IOR_read", "message_rate"): (2259.33, "imported from said.txt:26"),
    }
    first = json.loads((tmp_path / "run" / "plan.jsonl").read_text().splitlines()[1])["point"]
    assert (first["transfer"], first["access"]) == ("262144 bytes", "single-shared-file")
    assert _notes(tmp_path) == []


def test_an_older_one_says_its_clients_and_a_repetition_that_is_missing_is_noted(imported, tmp_path):
    assert imported(MARKED) == {("2n16/IOR_write", "bandwidth"): (2328.29 * 2**20, "imported from said.txt:16")}
    assert _notes(tmp_path) == ["said.txt:4: 1 of 2 repetitions are in the text"]


def test_ten_ranks_four_on_a_node_are_three_nodes(imported):
    assert {case for case, _ in imported(OLD.replace("16 (8 per node)", "10 (4 per node)"))} == {"3n10/IOR_write"}


def test_a_file_of_gibibytes_is_one(imported):
    """8 GiB in 8.978518 s are 912.40 MiB/s."""
    large = RUN.replace("filesize  : 8 MiB", "filesize  : 8 GiB").replace("0.008768", "8.978518")
    large = large[: large.index("read  ")]
    assert imported(large)["1n8/IOR_write", "bandwidth"][0] == 912.40 * 2**20


def test_a_phase_that_is_ended_by_time_moves_less_than_the_file(imported):
    assert imported(STONEWALL)["1n8/IOR_read", "bandwidth"][0] == 1495.76 * 2**20


def test_other_data_than_were_written_are_a_wrong_case(imported, tmp_path):
    rows = imported(RUN + WRONG)
    assert [value for value, _ in rows.values()] == [912.40 * 2**20, 4282, None]
    assert _ends(tmp_path)[1] == ("wrong", "said.txt:26: IOR found other data in the file than were written")


def test_a_test_that_gives_up_is_a_failed_case_beside_what_had_ended(imported, tmp_path):
    rows = imported(OLD + ERROR)
    assert rows["2n16/IOR_write", "bandwidth"][0] == 2328.29 * 2**20
    assert _ends(tmp_path) == [("ok", ""), ("failed", f"said.txt:17: {ERROR.strip()}")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUN.replace("912.40 ", "9124.0 "), "IOR printed a rate that is not the bytes of its file over its time: 'wri"),
        (OLD[:-1], "the last line has no end, so it may be cut in the middle of a number: 'write"),
        (RUN[: RUN.index("write  ")], "IOR's test of line 4 has no result: it did not end, or it is cut"),
        (RUN.replace("0.000973   ", ""), "IOR printed a row that does not fit its header: 'write"),
        (RUN.replace("tasks      ", "others     "), "IOR's test of line 4 does not say on how many ranks it ran"),
        (
            RUN.replace("nodes               : 1\n", "").replace("node    : 8\n", "node    : 8 "),
            "IOR printed '8 repetitions         : 1' where a number of 1 or more belongs: 'clients per node: 8 rep",
        ),
        (RUN[RUN.index("Results:") :], "IOR's text has no 'Options:', which say on how many ranks it ran"),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(refused, text, message):
    assert refused(text).startswith(f"said.txt: {message}")
