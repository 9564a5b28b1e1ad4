from __future__ import annotations

import pytest

from clusterbench.checks.nccl_settings import NcclSettings
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Device, Infiniband
from clusterbench.facts.nccl_conf import NcclConf, Setting
from tests.facts.machine import laptop, training

CARD = Device("mlx5_0", "0000:18:00.0", "1: CA", None, "MT4129", None, 0, "mlx5_core", ())


def judged(variables, *settings, cards=(CARD,), **environment):
    rdma = Infiniband(devices=cards, ports=())
    return NcclSettings().judge(training(NcclConf(settings=settings), rdma, variables=variables, **environment))


def test_what_forbids_a_way_is_an_error():
    (fault,) = judged({"NCCL_P2P_DISABLE": "1"}).faults
    assert fault.what == "NCCL_P2P_DISABLE=1 is set: GPUs of a host do not reach each other's memory"
    assert (fault.severity, fault.evidence) == ("error", "environment: NCCL_P2P_DISABLE=1")


def test_a_file_is_named_unless_the_environment_says_otherwise():
    setting = Setting("NCCL_IB_DISABLE", "1", "/etc/nccl.conf")
    (fault,) = judged({}, setting).faults
    assert fault.evidence == "/etc/nccl.conf: NCCL_IB_DISABLE=1"
    assert not judged({"NCCL_IB_DISABLE": "0"}, setting).faults


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "error"),
        ("NCCL_NET", "socket", "error"),
        ("NCCL_NET_GDR_LEVEL", "0", "error"),
        ("NCCL_ALGO", "Ring", "warning"),
        ("NCCL_ALGO", "Ring,Tree", "note"),
        ("NCCL_PROTO", "^LL128", "note"),
        ("NCCL_PROTO", "LL128", "warning"),
        ("NCCL_TOPO_FILE", "/opt/topology.xml", "note"),
        ("NCCL_DEBUG", "TRACE", "warning"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "warning"),
    ],
)
def test_each_has_its_severity(name, value, severity):
    (fault,) = judged({name: value}).faults
    assert fault.severity == severity


def test_a_way_that_the_host_does_not_have_is_a_note():
    (fault,) = judged({"NCCL_IB_DISABLE": "1"}, cards=()).faults
    assert fault.what == "NCCL_IB_DISABLE=1 is set: InfiniBand and RoCE are not used; this host has no RDMA device"
    assert fault.severity == "note"
    (fault,) = judged({"NCCL_P2P_DISABLE": "1"}, gpus=[{"name": "NVIDIA GeForce RTX 4090"}]).faults
    assert fault.severity == "note"
    assert fault.what.endswith("; this host has one GPU")


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"},
        {"NCCL_P2P_DISABLE": "0", "CUDA_LAUNCH_BLOCKING": "0"},
        {"NCCL_ALGO": ""},
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    ],
)
def test_what_takes_nothing_is_silent(variables):
    assert judged(variables).healthy


def test_what_was_not_recorded_is_not_judged_and_a_laptop_not_asked():
    host = training(NcclConf(settings=()))
    (said,) = NcclSettings().judge_all([Host("n1", {**host.environment, "variables": None})]).values()
    assert said.unknown[0].why == "nothing was recorded of variables"
    assert NcclSettings().judge(laptop(NcclConf(settings=()), variables={"NCCL_ALGO": "Ring"})).not_applicable
