from __future__ import annotations

import re
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2].parent / "shared/samples/perftest_ib_write_bw_loopback_all_sizes.txt"

# linux-rdma/perftest, README and src/perftest_parameters.c: the header as one end prints it.
HEAD = """\
---------------------------------------------------------------------------------------
                    {title}
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 2\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : {link}
---------------------------------------------------------------------------------------
 local address: LID {local} QPN 0x0127 PSN 0xa1c3f5
{gid}
 remote address: LID {remote} QPN 0x0127 PSN 0x9b1c2d
{remote_gid}
---------------------------------------------------------------------------------------
"""
BANDWIDTH = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             392.10             391.85             0.747395
 1048576    5000             393.00             392.90             0.046838
---------------------------------------------------------------------------------------
"""
LATENCY = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% percentile[usec]   99.9% percentile[usec]\n"
    " 2       1000          1.01           4.23         1.05               1.06             0.05            "
    "1.21                    4.23\n"
)
MEAN = """\
 #bytes        #iterations       t_avg[usec]    tps average
 2             9000000           1.11           450000.00
---------------------------------------------------------------------------------------
"""


def said(table, title="RDMA_Write BW Test", local="0x01", remote="0x02", gid="", remote_gid="", link="IB"):
    return HEAD.format(title=title, local=local, remote=remote, gid=gid, remote_gid=remote_gid, link=link) + table


def test_each_size_of_a_bandwidth_is_a_case(imported):
    rows = imported(said(BANDWIDTH), num_nodes=2)
    by_metric = {(case.rsplit("-", 1)[-1], metric): value for (case, metric), (value, _) in rows.items()}
    assert by_metric["64KiB", "bandwidth"] == pytest.approx(391.85e9 / 8)
    assert by_metric["64KiB", "message_rate"] == pytest.approx(747395)
    assert by_metric["1MiB", "bandwidth"] == pytest.approx(392.9e9 / 8)
    assert {basis for _, basis in rows.values()} >= {"imported from said.txt, 65536 bytes"}


def test_seconds_are_those_of_a_message(cases):
    """1 over 0.747395 and 0.046838 million messages a second."""
    recorded = [seconds for _, _, seconds in cases(said(BANDWIDTH), num_nodes=2).values()]
    assert recorded == pytest.approx([1.33798e-6, 21.3502e-6], rel=1e-4)


def test_a_latency_keeps_its_mean_median_and_extremes(imported):
    rows = imported(said(LATENCY, "RDMA_Write Latency Test"), num_nodes=2)
    of_latency = {metric: value for (_, metric), (value, _) in rows.items() if metric.startswith("latency")}
    assert of_latency == {
        "latency": pytest.approx(1.06e-6),
        "latency/min": pytest.approx(1.01e-6),
        "latency/p50": pytest.approx(1.05e-6),
        "latency/p99": pytest.approx(1.21e-6),
        "latency/max": pytest.approx(4.23e-6),
    }


def test_a_latency_that_ran_for_a_time_has_its_mean_alone(imported):
    rows = imported(said(MEAN, "Send Latency Test"), num_nodes=2)
    assert {metric: value for (_, metric), (value, _) in rows.items() if metric.startswith("latency")} == {
        "latency": pytest.approx(1.11e-6)
    }


def test_what_tells_tests_apart_names_the_case(imported):
    (case,) = {case for case, _ in imported(said(MEAN, "Send Latency Test"), num_nodes=2)}
    assert case.startswith("2n2/")
    assert re.search(r"send.latency.test", case, re.IGNORECASE)


def test_both_ends_of_one_port_are_on_one_host(imported):
    rows = imported(said(MEAN, "Send Latency Test", "0x0d", "0x0d"))
    assert {case.split("/")[0] for case, _ in rows} == {"1n2"}


@pytest.mark.skipif(not SAMPLE.exists(), reason="../shared absent")
def test_a_file_into_which_both_ends_print_is_one_test(imported):
    rows = imported(SAMPLE.read_text())
    assert {case.split("/")[0] for case, _ in rows} == {"1n2"}
    assert len({case for case, _ in rows}) == 23


def test_ends_of_roce_are_told_apart_by_their_gids(imported):
    gid = " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01"
    one = said(MEAN, "Send Latency Test", "0000", "0000", gid, gid, "Ethernet")
    assert {case.split("/")[0] for case, _ in imported(one)} == {"1n2"}


NO_HOSTS = "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"
TWO_TESTS = "said.txt holds several tests: Send Latency Test, RDMA_Write BW Test.\nhint: import a file of each"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (said(MEAN, "Send Latency Test"), NO_HOSTS),
        (said(MEAN, "Send Latency Test", "0000", "0000"), NO_HOSTS),
        (said(MEAN, "Send Latency Test", "0012", "0012"), NO_HOSTS),  # no address as perftest writes it
        (said(MEAN, "Send Latency Test").replace("LID", "LUD"), NO_HOSTS),
        (said(MEAN, "Send Latency Test") + said(BANDWIDTH), TWO_TESTS),
    ],
)
def test_what_is_not_said_is_asked_for(refused, text, message):
    assert refused(text) == message


def test_two_ends_fill_no_three_nodes(refused):
    assert refused(said(MEAN, "Send Latency Test"), num_nodes=3) == (
        "said.txt: perftest runs between two ends, which do not fill 3 nodes."
    )


def test_a_table_that_is_cut_is_refused(refused):
    assert "perftest printed" in refused(said(" #bytes #iterations\n", "Send Latency Test"), num_nodes=2)
