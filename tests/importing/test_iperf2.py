from __future__ import annotations

import pytest

# GoogleCloudPlatform/PerfKitBenchmarker, pull request 262.
STREAMS = """\
[  6] local 10.76.234.115 port 53527 connected with 10.237.229.201 port 5001
[  3] local 10.76.234.115 port 53524 connected with 10.237.229.201 port 5001
[  4] local 10.76.234.115 port 53525 connected with 10.237.229.201 port 5001
[  5] local 10.76.234.115 port 53526 connected with 10.237.229.201 port 5001
[ ID] Interval       Transfer     Bandwidth
[  4]  0.0-60.0 sec  3730 MBytes  521.1 Mbits/sec
[  5]  0.0-60.0 sec  3499 MBytes   489 Mbits/sec
[  6]  0.0-60.0 sec  3044 MBytes   425 Mbits/sec
[  3]  0.0-60.0 sec  3738 MBytes   522 Mbits/sec
[SUM]  0.0-60.0 sec  14010 MBytes  1957 Mbits/sec
"""
# Written by the form of iperf 2.1 with -i 5: intervals, and the whole time behind them.
INTERVALS = """\
------------------------------------------------------------
Client connecting to 10.0.0.2, TCP port 5001
TCP window size:  325 KByte (default)
------------------------------------------------------------
[  1] local 10.0.0.1 port 50318 connected with 10.0.0.2 port 5001 (icwnd/mss/irtt=14/1448/213)
[ ID] Interval       Transfer     Bandwidth
[  1] 0.0000-5.0000 sec  5.46 GBytes  9.38 Gbits/sec
[  1] 5.0000-10.0000 sec  5.46 GBytes  9.38 Gbits/sec
[  1] 0.0000-10.0031 sec  10.9 GBytes  9.36 Gbits/sec
"""


def test_the_sum_of_the_streams_is_one_case_between_two_hosts(imported):
    rows = imported(STREAMS)
    assert rows == {("2n2/TCP", "bandwidth"): (1957e6 / 8, "imported from said.txt:10")}


@pytest.mark.parametrize(
    ("text", "streams", "side", "seconds"),
    [
        (STREAMS, 4, None, 60.0),
        (INTERVALS, 1, "client", 10.0031),
        (INTERVALS.replace("Client connecting to 10.0.0.2, TCP", "Server listening on TCP"), 1, "server", 10.0031),
    ],
)
def test_the_streams_and_who_counted_are_told(cases, text, streams, side, seconds):
    (point, _, recorded_s) = cases(text)["2n2/TCP"]
    assert (point["streams"], point.get("counted_by"), recorded_s) == (streams, side, seconds)


def test_intervals_are_passed_over(imported):
    rows = imported(INTERVALS)
    assert [*rows.values()] == [(9.36e9 / 8, "imported from said.txt:9")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STREAMS[: STREAMS.index("[SUM]")], "the text holds 0 sums of iperf 2 over all streams and all of the time"),
        (
            STREAMS[: STREAMS.index("[  5]  0.0")],
            "the text holds 0 sums of iperf 2 over all streams and all of the time",
        ),
        (INTERVALS[: INTERVALS.index(".46 GBytes  9.38 Gbits/sec\n[  1] 0")], "the last line has no end, so it may be"),
        (INTERVALS + INTERVALS, "the text holds 2 sums of iperf 2 over all streams and all of the time, and not one"),
        (INTERVALS.replace("9.36 G", "9.36 M"), "iperf 2 printed a rate that is not its bytes over its time: '[  1] 0"),
        (INTERVALS.replace("TCP port", "UDP port"), "iperf 2 over UDP: what a client sent is not what arrived"),
    ],
)
def test_what_is_no_single_run_over_tcp_is_refused(refused, text, message):
    assert refused(text).startswith(f"said.txt: {message}")
