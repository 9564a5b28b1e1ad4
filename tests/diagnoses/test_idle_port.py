from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.idle_port import IdlePort
from clusterbench.types import Case, HostCounters
from tests.report.synthetic import case, observation, outcome, reading

HOSTS = ("n1", "n2", "n3", "n4")
MILLION = 10**6
ALL = dict.fromkeys(range(8), MILLION)


def counted(packets: Mapping[int, int], first: int = 0) -> HostCounters:
    """Of a host whose ports carried these, numbered from ``first``; what carried nothing did not grow."""
    ports = {f"mlx5_{first + port} port 1": {"packets": count} for port, count in packets.items() if count}
    return HostCounters(60.0, {"port": 8}, {**ports, "mlx5_9 port 1": {"packets": 900}})


class Seen(NamedTuple):
    """What these hosts counted in one case, with eight ranks on each."""

    case: Case
    counters: Sequence[HostCounters]


def seen(*of_hosts: HostCounters, name: str = "c", benchmark: str = "all_reduce") -> Seen:
    return Seen(case(name, 8 * len(of_hosts), num_nodes=len(of_hosts), benchmark=benchmark, device="cuda"), of_hosts)


def answer(*of_cases: Seen) -> Answer:
    records = []
    for of, counters in of_cases:
        of_hosts = {f"n{number}": each for number, each in enumerate(counters, start=1)}
        seconds = [(0.1,)] * of.world_size
        records.append((outcome(of), observation(of, seconds, hosts=tuple(of_hosts), counters=of_hosts)))
    return IdlePort().answer(reading(*records, cases=[of for of, _ in of_cases]))


WHOLE = counted(ALL)


@pytest.mark.parametrize(
    ("packets", "what"),
    [(0, "carries nothing"), (20_000, "carries 2.0 % of what they do on the other hosts")],
)
def test_a_port_that_carries_nothing_on_one_host_is_named(packets: int, what: str) -> None:
    (found,) = answer(seen(WHOLE, WHOLE, counted({**ALL, 3: packets}), WHOLE)).findings
    assert (found.where, found.what, found.severity, found.host) == ("host n3, mlx5_3 port 1", what, "warning", "n3")
    carried = packets if packets >= MILLION / 100 else 0
    assert found.evidence == f"{carried:,} packets in planted/1n32/c, and 1,000,000 on the median host"


def test_ports_of_one_host_are_one_finding_whatever_else_it_carries() -> None:
    others = HostCounters(60.0, {"port": 8}, {"mlx5_0 port 1": {"packets": MILLION}, "mlx5_1 port 1": {"packets": 9}})
    (found,) = answer(seen(WHOLE, others, WHOLE, WHOLE)).findings
    assert found.where.startswith("host n2, mlx5_1 port 1, mlx5_2 port 1")
    assert found.what == "carry nothing"


def test_health_says_how_many_were_compared() -> None:
    said = answer(seen(WHOLE, counted({**ALL, 3: 300_000}), WHOLE))
    assert (said.findings, said.not_judged) == ((), ())
    assert said.healthy == ("8 ports on 3 hosts: each carries its share",)


def test_a_port_that_carries_in_another_case_is_in_use() -> None:
    without = counted({**ALL, 3: 0})
    assert answer(seen(WHOLE, without, WHOLE, name="a"), seen(WHOLE, without, WHOLE, name="b")).findings
    assert not answer(seen(WHOLE, without, WHOLE, name="a"), seen(WHOLE, WHOLE, WHOLE, name="b")).findings


def test_a_host_that_took_part_in_few_cases_is_not_held_against_what_others_did_meanwhile() -> None:
    often = [seen(WHOLE, WHOLE, WHOLE, name=f"c{number}") for number in range(30)]
    assert not answer(*often, seen(WHOLE, WHOLE, WHOLE, WHOLE, name="all")).findings


@pytest.mark.parametrize(
    "of_case",
    [
        seen(WHOLE, counted({**ALL, 3: 0})),
        seen(WHOLE, counted({**ALL, 3: 0}), WHOLE, benchmark="parameter_server"),
        seen(counted({0: 10_000, 1: 10_000}), counted({0: 10_000}), counted({0: 10_000, 1: 10_000})),
        seen(counted({**ALL, 7: 0}), counted({**ALL, 7: 0}), WHOLE),
    ],
    ids=["of two hosts both go without", "ranks differ", "few packets", "one host's own storage"],
)
def test_what_differs_for_another_reason_is_not_named(of_case: Seen) -> None:
    assert answer(of_case).findings == ()


def test_ports_that_have_other_names_are_not_judged() -> None:
    said = answer(seen(WHOLE, WHOLE, counted(ALL, first=20), WHOLE))
    assert said.findings == ()
    (gap,) = said.not_judged
    assert gap.hosts == ("n3",)
    assert gap.sentence == "use of ports (n3: ports have other names; it takes names as on the others)"


def test_hosts_without_such_ports_have_nothing_to_judge() -> None:
    plain = HostCounters(60.0, {"interface": 1}, {"interface eth0": {"packets": MILLION}})
    said = answer(seen(plain, plain, plain))
    assert (said.findings, said.healthy, said.not_judged) == ((), (), ())
