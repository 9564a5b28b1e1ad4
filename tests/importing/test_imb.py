from __future__ import annotations

import json

import pytest

# hpc-uk/archer-benchmarks, synth/IMB/results: PingPong with Intel MPI 2019.3, Sendrecv with Open MPI 4.
PINGPONG = """\
#---------------------------------------------------
# Benchmarking PingPong
# #processes = 2
# ( 1022 additional processes waiting in MPI_Barrier)
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0         1000         0.38         0.00
            1         1000         0.37         2.69
      4194304           10      1029.39      4074.57

"""
SENDRECV = """\
#-----------------------------------------------------------------------------
# Benchmarking Sendrecv
# #processes = 128
#-----------------------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
            0         1000         0.76         0.77         0.77         0.00
      4194304           10      2442.53      3319.47      2868.86      2527.09

# All processes entering MPI_Finalize
"""
# stackhpc/hpc-tests, output/alaska/ib-gcc9-openmpi4-ucx/imb/IMB_Biband_0_25.
BIBAND = """\
# Benchmarking Biband
# #processes = 2
#---------------------------------------------------
       #bytes #repetitions   Mbytes/sec      Msg/sec
            0         1000         0.00     10398803
            8         1000        80.52     10065479

"""
# GoogleCloudPlatform/PerfKitBenchmarker, tests/data/mpi/mpi_barrier_output.txt: Intel MPI, groups.
GROUPS = """\
# Benchmarking Multi-Barrier
# ( 2 groups of 2 processes each running simultaneous )
# Group  0:     0    1
#
# Group  1:     2    3
#
#---------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
       100000        80.75        81.05        80.90

"""
# Written by the form of hpc-uk/archer-benchmarks' Allgather: a size that memory did not suffice for.
CUT_OFF = """\
# Benchmarking Allgather
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.00         0.00         0.00
      1048576           25       524.01       690.01       644.76
      2097152 out-of-mem.; needed X=   2.003 GB; use flag "-mem X" or MAX_MEM_USAGE>=X (IMB_mem_info.h)

"""


def _notes(tmp_path):
    return json.loads((tmp_path / "run" / "environment.json").read_text())["imported"]["notes"]


def test_each_size_is_a_case_and_ranks_that_wait_are_noted(imported, tmp_path):
    rows = imported(PINGPONG, num_nodes=32)
    assert rows["2n2/IMB_PingPong-4MiB", "latency"] == (1029.39e-6, "imported from said.txt:9")
    assert rows["2n2/IMB_PingPong-4MiB", "bandwidth"] == (4074.57e6, "imported from said.txt:9")
    assert _notes(tmp_path) == [
        "said.txt: 2 ranks of PingPong ran while 1022 waited; on how many hosts they were is not said: counted are as "
        "many as there can be"
    ]


def test_the_latency_is_the_mean_over_ranks_beside_its_least_and_most(imported):
    rows = imported(SENDRECV, num_nodes=2)
    row = {metric: value for (case, metric), (value, _) in rows.items() if case == "2n128/IMB_Sendrecv-4MiB"}
    times = {"latency": 2868.86e-6, "latency/min": 2442.53e-6, "latency/max": 3319.47e-6}
    assert row == pytest.approx({**times, "bandwidth": 2527.09e6})


def test_before_2018_a_megabyte_was_two_to_the_twentieth(imported):
    rows = imported(PINGPONG.replace("4074.57", "3885.82").replace("2.69", "2.57"), num_nodes=2)
    assert rows["2n2/IMB_PingPong-4MiB", "bandwidth"][0] == pytest.approx(4074.57e6, rel=1e-5)


def test_the_rate_of_a_small_message_is_its_bytes_over_its_time_and_not_two_decimals(imported):
    """Over 50.13 us one byte is printed as 0.02 MB/s, which is also what it is over 40.01."""
    rows = imported(PINGPONG.replace("         0.37         2.69", "        50.13         0.02"), num_nodes=2)
    assert rows["2n2/IMB_PingPong-1B", "bandwidth"][0] == pytest.approx(1 / 50.13e-6)


def test_messages_are_counted_and_groups_are_all_of_the_ranks(imported):
    rows = imported(BIBAND + GROUPS, num_nodes=2)
    assert rows["2n2/IMB_Biband-8B", "message_rate"][0] == 10065479
    assert rows["2n4/IMB_Barrier", "latency"][0] == pytest.approx(80.90e-6)


def test_where_no_row_tells_them_apart_a_megabyte_is_a_million_bytes(imported):
    """1 B in 0.10 us, which is printed in hundredths: 10 MB/s may be of 1e6 or of 2**20 bytes."""
    short = PINGPONG[: PINGPONG.index("            1  ")] + "            1         1000         0.10        10.00\n\n"
    assert imported(short, num_nodes=1)["1n2/IMB_PingPong-1B", "bandwidth"][0] == 10e6


def test_hosts_are_those_of_the_ranks_that_did_not_wait(cases):
    startup = "".join(
        f"[0] MPI startup(): {rank}       3026{rank}    node-{rank // 2}  {{{rank}}}\n" for rank in range(4)
    )
    recorded = cases(startup + PINGPONG.replace("1022", "2"))
    assert {(case.partition("/")[0], hosts) for case, (_, hosts, _) in recorded.items()} == {
        ("1n2", ("node-0", "node-0"))
    }


def test_seconds_are_those_of_a_call_or_of_a_message(cases):
    """1 over 10,065,479 messages a second."""
    recorded = cases(BIBAND + GROUPS, num_nodes=2)
    assert recorded["2n2/IMB_Biband-8B"][2] == pytest.approx(99.3495e-9, rel=1e-5)
    assert recorded["2n4/IMB_Barrier"][2] == pytest.approx(80.90e-6)


def test_what_is_left_out_is_noted(imported, tmp_path):
    assert {case for case, _ in imported(CUT_OFF, num_nodes=1)} == {"1n4/IMB_Allgather"}
    assert _notes(tmp_path) == [
        "said.txt:4: 1 row of Allgather left out, whose time is zero",
        "said.txt: IMB left out a size of Allgather: 2097152 out-of-mem.",
    ]


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (SENDRECV, {}, "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"),
        (SENDRECV, {"num_nodes": 129}, "said.txt: 128 ranks do not fill 129 nodes."),
        (
            PINGPONG.replace("4074.57", "407.457"),
            {"num_nodes": 1},
            "said.txt: IMB printed a rate that is not its bytes",
        ),
        (BIBAND.replace("80.52", "8.052"), {"num_nodes": 1}, "said.txt: IMB printed a rate that is not its bytes"),
        (SENDRECV[: SENDRECV.index("27.09")], {"num_nodes": 1}, "said.txt: the last line has no end, so it may be cut"),
        (PINGPONG.replace("# #processes = 2\n", ""), {"num_nodes": 1}, "said.txt: IMB does not say on how many proces"),
        (PINGPONG.replace("4194304 ", "41943x4 "), {"num_nodes": 1}, "said.txt: IMB printed '41943x4' where a size"),
        (PINGPONG.replace("10      1029", "1029"), {"num_nodes": 1}, "said.txt: IMB printed a row that does not fit"),
    ],
)
def test_what_does_not_say_enough_or_contradicts_itself_is_refused(refused, text, facts, message):
    assert refused(text, **facts).startswith(message)
