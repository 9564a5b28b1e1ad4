from typing import Any

import pytest

from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.grown_counters import GrownCounters
from clusterbench.types import HostCounters
from tests.report.synthetic import case, observation, outcome, reading

READ = {"port": 8, "interface": 1}
BUSY = {"packets": 10**7}
"""What a port does over which a case sends."""


def answer(*of_cases: HostCounters | None, device: str = "cuda", **more: Any) -> Answer:
    """Of a run whose cases ran on host n1, with these counters."""
    cases = [case(f"c{number}", device=device) for number, _ in enumerate(of_cases)]
    records = [
        (outcome(one), observation(one, hosts=("n1",), counters={} if counters is None else {"n1": counters}, **more))
        for one, counters in zip(cases, of_cases, strict=True)
    ]
    return GrownCounters().answer(reading(*records, cases=cases))


def counted(over_s: float = 60.0, **grown: int) -> HostCounters:
    """Of the port of a case, beside another that carries as much."""
    return HostCounters(over_s, READ, {"mlx5_0 port 1": BUSY, "mlx5_3 port 1": BUSY | grown})


def test_a_link_that_went_down_voids_the_case_and_is_named() -> None:
    (finding,) = answer(counted(link_downed=1), counted()).findings
    assert (finding.where, finding.what, finding.severity, finding.host) == (
        "host n1, mlx5_3 port 1",
        "the link went down; figures of 1 case are void",
        "error",
        "n1",
    )
    assert finding.evidence == (
        "link_downed +1, in planted/1n4/c0; judged by NVSentinel, docs/nic-health-monitor/link-counter-detection.md, "
        "section 4"
    )


def test_health_says_what_was_read() -> None:
    said = answer(counted(), counted())
    assert said.findings == ()
    assert said.healthy == ("error counters of 1 interface, 8 ports did not grow while cases ran",)
    assert said.state == "healthy"


@pytest.mark.parametrize(
    ("over_s", "grown", "severity"),
    [
        (60.0, {"symbol_error": 1}, "note"),
        (300.0, {"symbol_error": 10}, "note"),  # 120 an hour
        (299.0, {"symbol_error": 10}, "warning"),
        (60.0, {"local_ack_timeout_err": 60}, "note"),
        (60.0, {"local_ack_timeout_err": 61}, "warning"),
        (60.0, {"out_of_sequence": 1000}, "note"),  # 1 in 10,000 packets
        (60.0, {"out_of_sequence": 1001}, "warning"),
        (60.0, {"port_rcv_errors": 601}, "warning"),
        (60.0, {"np_cnp_sent": 10**6}, "note"),
        (60.0, {"rnr_nak_retry_err": 1}, "error"),
        (60.0, {"local_link_integrity_errors": 1}, "error"),
    ],
)
def test_below_a_rate_it_is_a_note(over_s: float, grown: dict[str, int], severity: str) -> None:
    assert [finding.severity for finding in answer(counted(over_s, **grown)).findings] == [severity]


def test_the_rate_stands_beside_the_count() -> None:
    (finding,) = answer(counted(60.0, out_of_sequence=5000, np_cnp_sent=120)).findings
    assert finding.evidence.startswith(
        "out_of_sequence +5,000 (0.0005 of its packets), np_cnp_sent +120 (2 a second), in"
    )


def test_counts_of_all_cases_are_judged_together() -> None:
    (finding,) = answer(*[counted(10.0, symbol_error=2)] * 5).findings
    assert (finding.severity, finding.what) == ("warning", "symbol errors")


def test_notes_alone_leave_it_healthy() -> None:
    said = answer(counted(np_cnp_sent=100))
    assert said.state == "healthy"
    assert said.healthy == ("error counters of 1 interface, 8 ports stayed below what is a warning",)


def test_a_port_over_which_no_case_sent_is_a_note_and_voids_nothing() -> None:
    management = {"mlx5_0 port 1": BUSY, "mlx5_bond_0 port 1": {"packets": 900, "link_downed": 2}}
    (finding,) = answer(HostCounters(60.0, READ, management)).findings
    assert (finding.severity, finding.what) == ("note", "the link went down; no case sent over it")
    interface = {"mlx5_0 port 1": BUSY, "interface eth0": {"packets": 10**6, "carrier_changes": 2}}
    assert [finding.severity for finding in answer(HostCounters(60.0, READ, interface)).findings] == ["note"]


def test_a_port_that_went_down_where_nothing_was_sent_is_a_warning() -> None:
    (finding,) = answer(HostCounters(60.0, READ, {"mlx5_0 port 1": {"link_downed": 1}})).findings
    assert finding.severity == "warning"


def test_an_interface_that_carried_the_case_voids_it() -> None:
    (finding,) = answer(HostCounters(60.0, READ, {"interface eth0": {"packets": 10**6, "carrier_changes": 2}})).findings
    assert finding.what == "the carrier was lost or came back; figures of 1 case are void"


def test_pcie_errors_of_a_gpu_void_and_those_of_a_disk_do_not() -> None:
    gpu = HostCounters(60.0, READ, {"GPU 0000:1b:00.0": {"aer_dev_nonfatal": 1}})
    (finding,) = answer(gpu).findings
    assert finding.what == "PCIe errors that were not corrected; figures of 1 case are void"
    disk = HostCounters(60.0, READ, {"PCIe device 0000:c1:00.0": {"aer_dev_nonfatal": 1}})
    assert [finding.severity for finding in answer(disk).findings] == ["warning"]


def test_errors_of_gpu_memory_void_with_the_gpu_named() -> None:
    gpus = {"GPU-a": {"index": 3, "grown": {"ecc_uncorrected": 1}, "course": {"elapsed_s": [0.0, 9.0]}}}
    (finding,) = answer(counted(), telemetry={"n1": gpus}).findings
    assert (finding.where, finding.severity) == ("host n1, GPU 3", "error")
    assert finding.what == "memory errors that were not corrected; figures of 1 case are void"


def test_that_cases_in_ranks_of_mpi_count_nothing_leaves_the_machine_judged() -> None:
    """Under mpirun they never do, so that 'fabric', which accepts nothing that is not judged, accepted no cluster."""
    of_mpi = case("m", id="mpi/2n2/latency", benchmark="mpi", device="cuda")
    (one, seen), other = (outcome(of_mpi), observation(of_mpi, hosts=("n1",))), case("c0", device="cuda")
    read = outcome(other), observation(other, hosts=("n1",), counters={"n1": counted()})
    said = GrownCounters().answer(reading(read, (one, seen), cases=[other, of_mpi]))
    assert (said.state, said.not_judged) == ("healthy", ())
    alone = GrownCounters().answer(reading((one, seen), cases=[of_mpi]))
    assert [part.why for part in alone.not_judged] == ["1 of 1 record hold none"]


def test_what_was_not_read_is_not_judged() -> None:
    said = answer(None)
    assert (said.state, said.healthy) == ("not judged", ())
    assert said.not_judged[0].why == "1 of 1 record hold none"
    hung = answer(HostCounters(60.0, unread="files of /sys did not answer in 2 s"))
    assert hung.not_judged[0].why == "n1: files of /sys did not answer in 2 s"
    assert hung.healthy == ()


def test_one_host_without_gpus_and_without_counters_has_nothing_to_judge() -> None:
    assert answer(None, device="cpu").state == "nothing to judge"
