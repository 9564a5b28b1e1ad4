from __future__ import annotations

from typing import Any

from clusterbench.diagnoses.slow_gpu_memory import SlowGpuMemory
from clusterbench.rows import Row
from tests.report.synthetic import case, reading, row


def sent(memory: str, bytes_per_s: float, size_bytes: int = 2**23, **changes: Any) -> Row:
    point = {
        "size_bytes": size_bytes,
        "test": "ib_write_bw",
        "device": "mlx5_0",
        "memory": memory,
        "gpu_index": None if memory == "host" else 0,
        "messages": 1000,
        "server": 0,
        "client": 1,
        **changes,
    }
    planned = case(f"{memory}-{size_bytes}", 2, benchmark="perftest", point=point)
    of = row(planned, hosts="cb1 cb2")
    return of._replace(metric="bandwidth", unit="B/s", value=bytes_per_s)


def answer(*rows: Row) -> Any:
    return SlowGpuMemory().answer(reading(cases=[], rows=[*rows]))


def test_less_than_half_from_a_gpu_is_named_with_both_hosts() -> None:
    (finding,) = answer(sent("host", 48e9), sent("cuda", 20e9)).findings
    assert finding.where == "hosts cb1 and cb2"
    assert finding.what == "ib_write_bw reaches 42 % from memory of GPU 0 of what it reaches from host memory"
    assert finding.among == ("cb1", "cb2")
    assert "20.0 GB/s" in finding.evidence


def test_the_same_from_both_is_in_order() -> None:
    said = answer(sent("host", 48e9), sent("cuda", 43.3e9), sent("cuda_dmabuf", 48e9))
    assert not said.findings
    assert said.healthy == ("RDMA from GPU memory is as fast as from host memory, within 10 %: 2 pairs of cases",)


def test_just_below_nine_tenths_is_found() -> None:
    assert answer(sent("host", 48e9), sent("cuda", 43.1e9)).findings


def test_only_the_largest_message_that_both_sent_counts() -> None:
    rows = [sent("host", 1e9, 8), sent("cuda", 0.1e9, 8), sent("host", 48e9), sent("cuda", 47e9)]
    assert not answer(*rows).findings
    assert answer(sent("host", 48e9), sent("cuda", 9e9, 2**26)).not_judged


def test_another_pair_or_device_is_no_reference() -> None:
    assert answer(sent("host", 48e9, client=2), sent("cuda", 20e9)).not_judged
    assert answer(sent("host", 48e9, device="mlx5_1"), sent("cuda", 20e9)).not_judged


def test_without_gpus_there_is_nothing_to_judge() -> None:
    assert answer(sent("host", 48e9)).state == "nothing to judge"
