from __future__ import annotations

from dataclasses import asdict

import pytest

from clusterbench.checks.gid_index_set import GidIndexSet
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.nccl_conf import NcclConf, Setting
from tests.facts.machine import healthy, training


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return healthy().host(tmp_path_factory.mktemp("well")).of(Infiniband)


def judged(devices, version, *settings, **variables):
    host = training(devices, NcclConf(settings=settings), variables=variables, loaded={"nccl": version}, packages={})
    (said,) = GidIndexSet().judge_all([host]).values()
    return said


def test_an_index_is_found_where_nccl_chooses(devices):
    (fault,) = judged(devices, "2.27.3", NCCL_IB_GID_INDEX="3").faults
    assert fault.what == "NCCL_IB_GID_INDEX=3 is set, and NCCL 2.27.3 chooses the GID itself"
    assert fault.evidence == "environment: NCCL_IB_GID_INDEX=3"


def test_one_of_a_file_is_found(devices):
    (fault,) = judged(devices, "2.27.3", Setting("NCCL_IB_GID_INDEX", "3", "/etc/nccl.conf")).faults
    assert fault.evidence == "/etc/nccl.conf: NCCL_IB_GID_INDEX=3"


@pytest.mark.parametrize(("version", "faults"), [("2.20.5", 0), ("2.21.5", 1), ("2.9.9", 0), ("3.0", 1)])
def test_at_the_version(devices, version, faults):
    assert len(judged(devices, version, NCCL_IB_GID_INDEX="3").faults) == faults


def test_without_a_version_it_is_not_judged_and_without_the_variable_it_is_in_order(devices):
    why = "NCCL_IB_GID_INDEX=3 is set, and the version of NCCL is not known"
    assert judged(devices, None, NCCL_IB_GID_INDEX="3").unknown[0].why == why
    assert judged(devices, None).healthy == "NCCL_IB_GID_INDEX is not set"


def test_without_rdma_it_is_not_asked():
    host = training(NcclConf(settings=()), variables={"NCCL_IB_GID_INDEX": "3"})
    assert GidIndexSet().judge(host).not_applicable == "no RDMA device here"


def test_variables_that_were_not_recorded_are_not_judged(devices):
    host = Host("n1", {"facts": {"infiniband": asdict(devices)}})
    (said,) = GidIndexSet().judge_all([host]).values()
    assert said.unknown
