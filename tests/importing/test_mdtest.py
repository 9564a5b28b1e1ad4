from __future__ import annotations

import json

import pytest

# A message to linux-nfs of April 2025 on libnfs: mdtest 4.1 with 128 tasks on one node.
RUN = """\
-- started at 04/03/2025 14:39:30 --

mdtest-4.1.0+dev was launched with 128 total task(s) on 1 node(s)
Nodemap: 1111
128 tasks, 16384 files

SUMMARY rate (in ops/sec): (of 10 iterations)
   Operation                     Max            Min           Mean        Std Dev
   ---------                     ---            ---           ----        -------
   File creation                7147.432       6789.531       6996.044        132.149
   File stat                       0.000          0.000          0.000          0.000
   File read                   97004.685      48234.620      89099.077      14715.699
   Tree removal                   99.443         95.475         97.632          1.266
-- finished at 04/03/2025 14:40:05 --
"""
# VI4IO/io-500-dev, site-configs/dkrz/results-c-app, mdtest_easy_create-1.log: 1.9.3 with 1000 tasks on 100 nodes.
OLD = """\
mdtest-1.9.3 was launched with 1000 total task(s) on 100 node(s)
1000 tasks, 20000000 files
V-1:   File creation     :        579.629 sec,      18146.094 ops/sec
SUMMARY rate: (of 1 iterations)
   Operation                      Max            Min           Mean        Std Dev
   ---------                      ---            ---           ----        -------
   File creation     :      18146.098      18146.098      18146.098          0.000
   File removal      :          0.000          0.000          0.000          0.000
   Tree creation     :         36.394         36.394         36.394          0.000
"""
# hpc/ior, issue 300: figures of each rank stand before those of all.
PER_RANK = """\
mdtest-4.0.0 was launched with 10 total task(s) on 1 node(s)
SUMMARY rate: (of 3 iterations)
   Operation         per Rank:      Max            Min           Mean          Std Dev     per Iteration: Max            Min           Mean
   File creation             :     301409.087      61433.665     125683.173      64712.016         104202.595      61433.665      84093.570
"""  # noqa: E501
# VI4IO/io-500-dev, issue 33.
FAILED = """\
mdtest-1.9.3 was launched with 2 total task(s) on 1 node(s)
2 tasks, 320000 files
04/18/2019 11:08:50: Process 1: FAILED in mdtest_stat, unable to stat file: No such file or directory
application called MPI_Abort(comm=0x84000002, 1) - process 1
"""
WRONG = "\nERROR: verifying the data on read (12 errors)! Take the performance values with care!\n"


def _ends(tmp_path):
    outcomes = (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()
    return [(each["status"], each["reason"]) for each in map(json.loads, outcomes)]


def test_the_mean_over_iterations_stands_beside_least_and_most_and_what_was_not_asked_for_is_no_case(imported):
    rows = imported(RUN)
    assert {case for case, _ in rows} == {
        f"1n128/mdtest_{name}" for name in ("File_creation", "File_read", "Tree_removal")
    }
    assert rows["1n128/mdtest_File_creation", "message_rate"] == (6996.044, "imported from said.txt:10")
    assert rows["1n128/mdtest_File_creation", "message_rate/min"][0] == 6789.531
    assert rows["1n128/mdtest_File_creation", "message_rate/max"][0] == 7147.432


def test_fewer_tasks_than_nodes_are_on_as_many_nodes(imported):
    few = RUN.replace("128 total task(s) on 1 node(s)", "128 total task(s) on 4 node(s)").replace(
        "128 tasks, 1", "2 tasks, 1"
    )
    assert {case.partition("/")[0] for case, _ in imported(few)} == {"2n2"}


def test_older_ones_have_a_colon_and_figures_of_each_rank_are_not_those_of_all(imported):
    rows = imported(OLD + PER_RANK)
    assert rows["100n1000/mdtest_File_creation", "message_rate"][0] == 18146.098
    assert rows["1n10/mdtest_File_creation", "message_rate"][0] == 84093.570


def test_a_run_that_gives_up_is_a_failed_case_and_other_data_are_a_wrong_one(imported, tmp_path):
    imported(RUN + FAILED + RUN.replace("-- fin", WRONG + "-- fin"))
    ends = _ends(tmp_path)
    assert [status for status, _ in ends] == ["ok", "ok", "ok", "failed", "ok", "wrong", "ok"]
    assert ends[3][1].startswith("said.txt:17: 04/18/2019 11:08:50: Process 1: FAILED in mdtest_stat, unable to stat")
    assert ends[5][1] == "said.txt:30: mdtest read other data than were written"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUN[: RUN.index("SUMMARY")], "mdtest's run of line 5 has no summary of rates: it did not end, or it is cut"),
        (RUN[: RUN.index(".266")], "the last line has no end, so it may be cut in the middle of a number: 'Tree rem"),
        (RUN.replace("6996.044", "996.044"), "mdtest printed a mean that is not between least and most: 'File cr"),
        (RUN.replace("6789.531", ""), "mdtest printed a row that does not fit its header: 'File creation"),
        (f"x {RUN}".replace("\nmdtest-", "\nx mdtest-"), "mdtest's text has no line that begins with 'mdtest-' and"),
        (RUN.replace("128 total", f"{'1' * 250} total"), "mdtest printed '1111111111111111111111111111111111111111' "),
        (RUN.replace("128 tasks", "0 tasks"), "mdtest printed '0' where a number of 1 or more belongs: '0 tasks, 163"),
        (RUN.replace("128 tasks", "129 tasks"), "mdtest ran with 129 of 128 tasks: '129 tasks, 16384 files'"),
        (RUN.replace("rate (in ops/sec)", "time (in ms/op)"), "mdtest's run of line 5 has no summary of rates: it"),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(refused, text, message):
    assert refused(text).startswith(f"said.txt: {message}")
