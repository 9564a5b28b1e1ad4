from __future__ import annotations

import json
from typing import Any

import pytest

# microsoft/superbenchmark, tests/data/disk_performance.log, and fio-2.1.4 of GoogleCloudPlatform/PerfKitBenchmarker:
# versions from 3.0 on have bytes and ns, older ones KiB and us.
NEW: dict[str, Any] = {
    "io_bytes": 13627416576,
    "bw_bytes": 4542472192,
    "bw": 4436008,
    "iops": 1109001.2,
    "runtime": 3000,
    "clat_ns": {"mean": 1444476.06, "percentile": {"50.000000": 1400832, "99.000000": 2801664}},
}
OLD: dict[str, Any] = {
    "io_bytes": 104857600,
    "bw": 1024000,
    "iops": 2000.0,
    "runtime": 102400,
    "clat": {"mean": 477.7, "percentile": {"50.000000": 400}},
}
NOTHING = {"io_bytes": 0, "bw": 0, "runtime": 0}
TEXT = """\
seq: (groupid=0, jobs=4): err= 0: pid=3054: Tue Mar  3 10:00:00 2026
  write: IOPS=1210, BW=1211MiB/s (1270MB/s)(71.0GiB/60034msec); 0 zone resets
    slat (usec): min=20, max=411, avg=40.12, stdev= 9.10
    clat (msec): min=3, max=410, avg=105.60, stdev=20.11
     lat (msec): min=3, max=410, avg=105.70, stdev=20.11
    clat percentiles (msec):
     |  1.00th=[   50],  5.00th=[   70], 50.00th=[  104],
     | 90.00th=[  130], 99.00th=[  180], 99.99th=[  400]
Run status group 0 (all jobs):
  WRITE: bw=1211MiB/s (1270MB/s), 1211MiB/s-1211MiB/s (1270MB/s-1270MB/s), io=71.0GiB (76.2GB), run=60034-60034msec
"""


def report(*jobs, version="fio-3.16"):
    return json.dumps({"fio version": version, "global options": {"bs": "4k"}, "jobs": jobs}, indent=2)


def job(name="a", read=NOTHING, write=NOTHING, **other):
    return {"jobname": name, "error": 0, "job options": {"rw": "randread"}, "read": read, "write": write, **other}


def values(rows):
    return {key: value for key, (value, _) in rows.items()}


def test_rates_are_bytes_and_latencies_seconds(imported):
    rows = imported(report(job(read=NEW)) + "\n")
    assert values(rows) == {
        ("1n1/a", "latency"): pytest.approx(1444476.06e-9),
        ("1n1/a", "latency/p50"): pytest.approx(1400832e-9),
        ("1n1/a", "latency/p99"): pytest.approx(2801664e-9),
        ("1n1/a", "bandwidth"): 4542472192,
        ("1n1/a", "message_rate"): 1109001.2,
    }
    assert rows["1n1/a", "bandwidth"][1] == "imported from said.txt jobs[0]"


def test_old_versions_have_kib_and_microseconds(imported):
    rows = values(imported(report(job(write=OLD), version="fio-2.1.4")))
    assert rows["1n1/a", "bandwidth"] == 1024000 * 1024
    assert rows["1n1/a", "latency/p50"] == pytest.approx(400e-6)


def test_processes_of_one_name_are_numbered_and_a_failed_job_is_a_case(imported, tmp_path):
    rows = imported(report(job(read=NEW), job(read=NEW), job("b", error=5)))
    assert {case for case, metric in rows if metric == "bandwidth"} == {"1n1/a-process1", "1n1/a-process2"}
    outcomes = [json.loads(line) for line in (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()]
    assert [each["status"] for each in outcomes] == ["ok", "ok", "failed"]
    assert outcomes[2]["reason"] == "said.txt jobs[2] reports error 5"


def test_hosts_of_a_client_are_told_apart(imported):
    clients = [{**job(read=NEW), "hostname": host} for host in ("n1", "n2")]
    total = {**job("All clients", read=NEW)}
    text = json.dumps({"fio version": "fio-3.36", "client_stats": [*clients, total]}, indent=1)
    assert {case for case, _ in imported(text)} == {"1n1/n1", "1n1/n2"}


def test_what_it_prints_for_people_is_read(imported):
    assert values(imported(TEXT)) == {
        ("1n1/seq", "latency"): pytest.approx(0.1056),
        ("1n1/seq", "latency/p50"): pytest.approx(0.104),
        ("1n1/seq", "latency/p99"): pytest.approx(0.180),
        ("1n1/seq", "bandwidth"): 1270e6,
        ("1n1/seq", "message_rate"): 1210,
    }


def test_thousands_of_requests_are_decimal(imported):
    assert values(imported(TEXT.replace("IOPS=1210,", "IOPS=1.21k,")))["1n1/seq", "message_rate"] == 1210


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (report(job()), "said.txt: fio moved nothing"),
        (report(job(read=NEW))[:-40], "said.txt: fio printed no JSON: "),
        (
            report(job(read={**NEW, "bw_bytes": 1})),
            "said.txt: fio printed 1.36274e+10 bytes in 3 s and a rate",
        ),
        (TEXT + TEXT, "said.txt: the text holds several runs of fio, and not one"),
        (TEXT.replace("60034msec)", "6003msec)"), "said.txt: fio printed a rate that is not its bytes over its time: "),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(refused, text, message):
    assert refused(text).startswith(message)


def test_a_mean_that_is_cut_is_left_out(imported):
    rows = values(imported(TEXT[: TEXT.index("5.60, stdev")]))  # avg=10, of 105.60
    assert {metric for _, metric in rows} == {"bandwidth", "message_rate"}
