from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.queue_pairs import QueuePairs
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.nccl_conf import NcclConf
from tests.facts.machine import healthy, others, training

NO_FILES = NcclConf(settings=())


@pytest.fixture(scope="module")
def roce(tmp_path_factory):
    return others()["roce"].host(tmp_path_factory.mktemp("roce")).of(Infiniband)


def judged(devices, **variables):
    return QueuePairs().judge(training(devices, NO_FILES, variables=variables))


def test_one_on_roce_is_a_note(roce):
    (fault,) = judged(roce).faults
    assert fault.what == "each RoCE connection has one queue pair, and takes one of the network's paths"
    assert (fault.evidence, QueuePairs.severity) == ("NCCL_IB_QPS_PER_CONNECTION is not set", "note")


@pytest.mark.parametrize(("value", "faults"), [("1", 1), ("2", 0), ("x", 1)])
def test_from_two_on_it_is_in_order(roce, value, faults):
    assert len(judged(roce, NCCL_IB_QPS_PER_CONNECTION=value).faults) == faults


def test_infiniband_and_ports_that_are_down_are_not_asked(roce, tmp_path):
    assert judged(healthy().host(tmp_path).of(Infiniband)).not_applicable == "no active RoCE port here"
    down = replace(roce, ports=tuple(replace(port, state="1: DOWN") for port in roce.ports))
    assert judged(down).not_applicable


def test_variables_that_were_not_recorded_are_not_judged(roce):
    (said,) = QueuePairs().judge_all([training(roce, variables=None)]).values()
    assert said.unknown
