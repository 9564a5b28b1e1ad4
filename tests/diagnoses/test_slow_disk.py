from __future__ import annotations

from clusterbench.diagnoses.slow_disk import SlowDisk
from tests.report.synthetic import case, observation, outcome, reading

USUAL = (0.10, 0.11, 0.10)


def answer(*of_ranks, hosts=("n1", "n2", "n3", "n4"), benchmark="file_io"):
    """What is said of a case with these seconds of each rank, on these hosts in turn."""
    ranks = len(of_ranks)
    of = case("write", ranks, num_nodes=len(hosts), benchmark=benchmark, point={"path": "/scratch"})
    seen = observation(of, of_ranks, hosts=hosts)
    return SlowDisk().answer(reading((outcome(of), seen), cases=[of]))


def test_a_host_whose_files_take_longer_is_named_with_its_folder():
    (found,) = answer(USUAL, USUAL, (0.52, 0.50, 0.55), USUAL).findings
    assert (found.where, found.host, found.severity) == ("/scratch on n3", "n3", "warning")
    assert found.what == "takes 0.52 s for its files, 5.2 times as long as the median host (0.1 s)"
    assert found.evidence == "planted/1n4/write: its best iteration took 0.5 s"


def test_the_time_stands_with_the_case_that_it_is_of():
    """Six cases were named, and then 'its best iteration took 0.101 s'."""
    write, read, look_up = (case(name, 4, num_nodes=4, benchmark="file_io") for name in ("write", "read", "stat"))
    records = [
        (outcome(of), observation(of, [(s, s), (s, s), (slow * s, slow * s), (s, s)], hosts=("n1", "n2", "n3", "n4")))
        for of, s, slow in ((write, 1.0, 3.0), (read, 0.1, 5.0), (look_up, 0.01, 4.0))
    ]
    (found,) = SlowDisk().answer(reading(*records, cases=[write, read, look_up])).findings
    assert found.evidence == f"{read.id}: its best iteration took 0.5 s; slow in {write.id}, {look_up.id} as well"


def test_a_host_is_as_slow_as_its_slowest_rank():
    (found,) = answer(*[USUAL] * 4, USUAL, (0.5, 0.5, 0.5), *[USUAL] * 2).findings
    assert found.host == "n3"


def test_hosts_that_are_alike_are_in_order():
    said = answer(USUAL, (0.15, 0.14, 0.15), USUAL, USUAL)
    assert said.findings == ()
    assert said.healthy == ("files of 4 hosts: none takes 2 times as long as the median host",)


def test_one_iteration_that_was_in_time_speaks_for_a_disk():
    assert answer(USUAL, USUAL, (0.5, 0.12, 0.6), USUAL).findings == ()


def test_two_hosts_and_other_benchmarks_are_not_compared():
    slow = (0.5, 0.5, 0.5)
    assert answer(USUAL, slow, hosts=("n1", "n2")).state == "nothing to judge"
    assert answer(USUAL, USUAL, slow, USUAL, benchmark="matmul").state == "nothing to judge"
