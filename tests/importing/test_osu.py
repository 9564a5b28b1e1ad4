from __future__ import annotations

import pytest

from clusterbench.importing import Facts, import_files
from clusterbench.report import render_report

# EESSI/software-layer, pull request 716: two A100, mpirun -np 2 osu_bw -d cuda D D.
CUDA = """\
# OSU MPI-CUDA Bandwidth Test v7.2
# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)
# Size      Bandwidth (MB/s)
# Datatype: MPI_CHAR.
1                       1.01
4194304             87543.13
"""
# GoogleCloudPlatform/PerfKitBenchmarker, tests/data/omb/allreduce.txt: Intel's MPI lists the ranks.
STARTUP = """\
[0] MPI startup(): Multi-threaded optimized library
[0] MPI startup(): Rank    Pid      Node name       Pin cpu
[0] MPI startup(): 0       30264    node-0  {0,4}
[0] MPI startup(): 1       3321     node-1  {0,4}
[0] MPI startup(): 2       30265    node-0  {1,5}
[0] MPI startup(): 3       3322     node-1  {1,5}
"""
ALLREDUCE = """\
# OSU MPI Allreduce Latency Test v5.7.1
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      46.87             32.10             61.30        1000
8                      70.10             40.00            130.89        1000
"""
# The same, tests/data/omb/mbw_mr.txt.
PAIRS = """\
# OSU MPI Multiple Bandwidth / Message Rate Test v5.7.1
# [ pairs: 4 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
4                     126.43       31608531.76
"""
NON_BLOCKING = """\
# OSU MPI Non-blocking Allreduce Latency Test v5.7.1
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Size           Overall(us)       Compute(us)    Coll. Init(us)      MPI_Test(us)      MPI_Wait(us)    \
Pure Comm.(us)     Min Comm.(us)     Max Comm.(us)        Overlap(%)
4                      70.27             54.17              4.93              0.00             11.03             \
50.52             26.21             74.36             68.15
"""


def test_a_bandwidth_of_few_printed_digits_is_size_times_messages(imported):
    rows = imported(PAIRS.replace("4                     126.43       31608531.76", "1  0.02  17344.18"), num_nodes=2)
    (found,) = (value for (_, metric), (value, _) in rows.items() if metric == "bandwidth")
    assert found == pytest.approx(17344.18)


def test_a_bandwidth_is_in_millions_of_bytes_and_names_its_line(imported):
    assert imported(CUDA, num_nodes=1) == {
        ("1n2/MPI-CUDA_Bandwidth-1B", "bandwidth"): (1.01e6, "imported from said.txt:5"),
        ("1n2/MPI-CUDA_Bandwidth-4MiB", "bandwidth"): (87543.13e6, "imported from said.txt:6"),
    }


def test_a_collective_has_its_extremes_and_intels_mpi_says_its_ranks(imported):
    rows = imported(STARTUP + ALLREDUCE)
    assert rows["2n4/MPI_Allreduce_Latency-8B", "latency"] == (pytest.approx(70.10e-6), "imported from said.txt:10")
    assert rows["2n4/MPI_Allreduce_Latency-8B", "latency/max"][0] == pytest.approx(130.89e-6)
    assert rows["2n4/MPI_Allreduce_Latency-4B", "latency/min"][0] == pytest.approx(32.10e-6)


def test_pairs_say_their_ranks(imported):
    rows = imported(PAIRS, num_nodes=2)
    assert {key: value for key, (value, _) in rows.items()} == {
        ("2n8/MPI_Multiple_Bandwidth_Message_Rate", "bandwidth"): 126.43e6,
        ("2n8/MPI_Multiple_Bandwidth_Message_Rate", "message_rate"): 31608531.76,
    }


def test_hosts_are_in_the_order_of_ranks_whatever_that_of_the_lines(cases):
    head, first, second, third, fourth = STARTUP.partition("0       ")[0], *STARTUP.splitlines()[2:]
    startup = "\n".join([*head.splitlines()[:2], fourth, second, third, first, ""])
    (_, hosts, _), *_ = cases(startup + ALLREDUCE).values()
    assert hosts == ("node-0", "node-1", "node-0", "node-1")


def test_where_what_is_sent_lies_stands_before_where_it_arrives(cases):
    text = CUDA.replace("Receive Buffer on DEVICE (D)", "Receive Buffer on HOST (H)")
    assert [point["buffers"] for point, _, _ in cases(text, num_nodes=1).values()] == ["D H", "D H"]


@pytest.mark.parametrize(
    ("text", "seconds"), [(ALLREDUCE, [46.87e-6, 70.10e-6]), (PAIRS, [31.637e-9]), (CUDA, [990.1e-9, 47.9112e-6])]
)
def test_seconds_are_those_of_a_call_or_of_a_message(cases, text, seconds):
    """1 over 31,608,531.76 messages a second; 1 B over 1.01 MB/s, and 4,194,304 B over 87,543.13 MB/s."""
    facts = {"num_nodes": 2, "num_ranks": 8} if text == ALLREDUCE else {"num_nodes": 2}
    recorded = [second for _, _, second in cases(text, **facts).values()]
    assert recorded == pytest.approx(seconds, rel=1e-4)


def test_of_a_non_blocking_call_the_whole_and_the_communication_are_kept(imported):
    rows = imported(NON_BLOCKING, num_nodes=2, num_ranks=8)
    assert [key[1] for key in rows] == ["latency", "latency/communication"]
    assert [value for value, _ in rows.values()] == [pytest.approx(70.27e-6), pytest.approx(50.52e-6)]


def test_a_barrier_has_no_size_and_a_latency_of_no_bytes_is_one(imported):
    header = "# Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
    barrier = f"# OSU MPI Barrier Latency Test v5.7.1\n{header}"
    assert len(imported(f"{barrier}   41.14   41.11   41.15   1000\n", num_nodes=2, num_ranks=8)) == 3


def test_percentiles_are_kept(imported):
    text = "# OSU MPI Latency Test v7.3\n# Size       Avg Latency(us)      P50 Tail Lat(us)      P99 Tail Lat(us)\n"
    rows = imported(f"{text}0      1.50      1.40      3.00\n", num_nodes=2)
    assert [key[1] for key in rows] == ["latency", "latency/p50", "latency/p99"]


def test_what_another_program_printed_behind_a_table_is_no_row_of_it(imported):
    assert imported(f"{CUDA}\nnode distances:\nnode   0   1\n  0:  10  32\n  1:  32  10\n", num_nodes=1)


def test_a_program_that_ran_again_is_a_second_attempt(imported):
    rows = imported(CUDA + CUDA, num_nodes=1)
    places = {basis for _, basis in rows.values()}
    assert {"imported from said.txt:5", "imported from said.txt:11"} <= places


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (CUDA, {}, "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"),
        (ALLREDUCE, {}, "said.txt does not say on how many ranks it ran.\nhint: say it with --num-ranks"),
        (
            PAIRS,
            {"num_ranks": 4},
            "said.txt: MPI Multiple Bandwidth / Message Rate ran on 8 ranks, but --num-ranks",
        ),
        (CUDA, {"op": "all_reduce"}, "--op: not for OSU micro-benchmarks, whose output says it itself."),
        (
            CUDA[:-4],
            {"num_nodes": 1},
            "said.txt: the last line has no end, so it may be cut in the middle of",
        ),
        (
            f"{CUDA}8 1.0 2.0\n",
            {"num_nodes": 1},
            "said.txt: OSU printed a row that does not fit its header: '8 1.0",
        ),
        (
            # ofiwg/libfabric, issue 11231: osu_bibw -c.
            "# OSU MPI-CUDA Bi-Directional Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)        Validation\n"
            "1                       0.32              Fail\n",
            {"num_nodes": 1},
            "said.txt: OSU's validation failed, so its figures are of wrong results: ",
        ),
        (
            PAIRS.replace("126.43", "12.643"),
            {"num_nodes": 1},
            "said.txt: OSU printed a bandwidth that is not its size times its messages: ",
        ),
    ],
)
def test_what_is_cut_wrong_or_does_not_say_enough_is_refused(refused, text, facts, message):
    assert refused(text, **facts).startswith(message)


def test_the_page_claims_nothing_of_what_its_ranks_ran_on(tmp_path):
    """What OSU's texts leave out is no CPU, and MPI is not Gloo."""
    (tmp_path / "osu.txt").write_text(ALLREDUCE)
    run = import_files([tmp_path / "osu.txt"], out=tmp_path / "run", facts=Facts(num_nodes=2, num_ranks=16))
    page = render_report(run).path.read_text(encoding="utf-8")
    assert "2 nodes × 8 ranks" in page
    assert "A figure stands as its source has it." in page
    for untrue in ("talk over Gloo", "CPU rank", "(Gloo)", "that of its slowest rank"):
        assert untrue not in page, untrue
