from __future__ import annotations

import json

import pytest

from tests.tools import printed

HEAD = """\
Connecting to host 10.0.0.2, port 5201
[  5] local 10.0.0.1 port 37790 connected to 10.0.0.2 port 5201
[  7] local 10.0.0.1 port 37792 connected to 10.0.0.2 port 5201
"""
# AhmedSoliman/netperf, issue 3: two streams of which the receiver says nothing; the sums of the second are ours.
SUMS = """\
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-2.78   sec  7.98 GBytes  24.6 Gbits/sec    0             sender
[  5]   0.00-2.78   sec  {stream} GBytes  {stream_rate} Gbits/sec                  receiver
[  7]   0.00-2.78   sec  7.98 GBytes  24.6 Gbits/sec    1             sender
[  7]   0.00-2.78   sec  {stream} GBytes  {stream_rate} Gbits/sec                  receiver
[SUM]   0.00-2.78   sec  16.0 GBytes  49.3 Gbits/sec    1             sender
[SUM]   0.00-2.78   sec  {sum} GBytes  {rate} Gbits/sec                  receiver

iperf Done.
"""
TWO = HEAD + SUMS.format(stream="7.90", stream_rate="24.4", sum="15.8", rate="48.8")
# perfsonar/pscheduler, issue 582.
ONE = """\
[ 16] local 10.0.0.1 port 1 connected to 10.0.0.1 port 5201
[ ID] Interval           Transfer     Bandwidth       Retr
[ 16]   0.00-10.02  sec   607 MBytes   508 Mbits/sec  128             sender
[ 16]   0.00-10.02  sec   607 MBytes   508 Mbits/sec                  receiver
"""


def values(rows):
    return {key: value for key, (value, _) in rows.items()}


def test_what_arrived_over_all_streams_counts(imported):
    rows = imported(TWO)
    assert [case for case, _ in rows] == ["2n2/TCP", "2n2/TCP"]
    assert rows["2n2/TCP", "bandwidth"] == (48.8e9 / 8, "imported from said.txt:11")
    assert rows["2n2/TCP", "retransmits"][0] == 1


def test_one_stream_has_no_sum_and_equal_addresses_are_one_host(imported):
    rows = values(imported(ONE))
    assert rows == {("1n2/TCP", "bandwidth"): 508e6 / 8, ("1n2/TCP", "retransmits"): 128}


def test_json_is_read(imported):
    report = json.loads(printed.IPERF3)
    report["start"] = {"tcp_mss_default": 1448, "connected": [{"local_host": "a", "remote_host": "b"}]}
    rows = values(imported(json.dumps(report, indent=1)))
    assert rows["2n2/TCP", "bandwidth"] == report["end"]["sum_received"]["bits_per_second"] / 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + SUMS.format(stream="0.00", stream_rate="0.00", sum="0.00", rate="0.00"),
            "said.txt: nothing arrived by what the receiver says: '[SUM]",
        ),
        (TWO[: TWO.index("[SUM]")], "said.txt: the receiver's sum of the iperf3 run is not in the text"),
        (TWO[: TWO.index("[  7]   0.00")], "said.txt: the receiver's sum of the iperf3 run is not in the text"),
        (ONE + ONE, "said.txt: the text holds 2 runs of iperf3: import each from a file of its own"),
        (
            TWO.replace("48.8 Gbits", "48.8 Mbits"),
            "said.txt: iperf3 printed a rate that is not its bytes over its time",
        ),
        (
            # GoogleCloudPlatform/PerfKitBenchmarker, tests/windows_packages/iperf3_test.py.
            "[  4] local 10.129.0.4 port 49526 connected to 10.129.0.3 port 5201\n"
            "[ ID] Interval           Transfer     Bandwidth       Jitter    Lost/Total Datagrams\n"
            "[  4]   0.00-3.00   sec   492 MBytes  1.38 Gbits/sec  0.072 ms  35148/62949 (56%)\n",
            "said.txt: iperf3 over UDP says how much was sent, which is not how much arrived",
        ),
    ],
)
def test_what_did_not_arrive_or_is_not_one_run_is_refused(refused, text, message):
    assert refused(text).startswith(message)


def test_both_ways_at_once_are_refused_as_text(refused):
    ways = "".join(
        f"[  {stream}][{role}]   0.00-10.00  sec  10.9 GBytes  9.35 Gbits/sec  {side}\n"
        for stream, role in ((5, "TX-C"), (7, "RX-C"))
        for side in ("sender", "receiver")
    )
    said = f"{HEAD}[ ID][Role] Interval           Transfer     Bitrate         Retr\n{ways}"
    assert refused(said).startswith("said.txt: iperf3 ran both ways at once (--bidir)")


@pytest.mark.parametrize("start", [{"test_start": {"num_streams": 1}}, {"test_start": {"num_streams": 1, "bidir": 1}}])
def test_both_ways_at_once_are_refused(refused, start):
    """esnet/iperf, pull request 1200: up to 3.10 both sums have one name, so that the second hides the first."""
    report = json.loads(printed.IPERF3)
    report["start"] = {"tcp_mss_default": 1448, "connected": [{"local_host": "a", "remote_host": "b"}], **start}
    report["end"]["streams"] *= 2
    if "bidir" in start["test_start"]:
        report["end"]["sum_received_bidir_reverse"] = report["end"]["sum_received"]
    assert refused(json.dumps(report, indent=1)).startswith("said.txt: iperf3 ran both ways at once (--bidir)")
