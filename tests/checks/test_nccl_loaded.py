from __future__ import annotations

import pytest

from clusterbench.checks import hosts_of
from clusterbench.checks.nccl_loaded import NcclLoaded
from clusterbench.facts import Host
from tests.facts.machine import laptop, training

PATH = "/opt/nccl/lib/libnccl.so.2.21.5"


def judged(loaded=None, **environment):
    (said,) = NcclLoaded().judge_all([training(loaded=loaded, **environment)]).values()
    return said


def test_another_version_is_found_with_where_it_is_from():
    variables = {"LD_LIBRARY_PATH": "/opt/nccl/lib"}
    (fault,) = judged({"nccl": "2.21.5", "nccl_path": PATH}, variables=variables).faults
    assert fault.what == f"NCCL 2.21.5 is loaded from {PATH}, and 2.27.3 is installed"
    assert fault.evidence == f"workers: 2.21.5 from {PATH}; LD_LIBRARY_PATH=/opt/nccl/lib"


@pytest.mark.parametrize("installed", ["2.27.3", "2.27.3.post1"])
def test_the_same_release_is_in_order(installed):
    said = judged({"nccl": "2.27.3"}, packages={"nvidia-nccl-cu12": installed})
    assert said.healthy == "NCCL 2.27.3 is loaded, as installed"


def test_before_a_worker_runs_a_preloaded_library_is_found():
    (fault,) = judged(variables={"LD_PRELOAD": f"/usr/lib/libx.so {PATH}"}).faults
    assert fault.what == f"LD_PRELOAD puts {PATH} in the place of the installed NCCL 2.27.3"


def test_before_a_worker_runs_nothing_else_is_asked():
    environment = dict(training(variables={"LD_PRELOAD": "/usr/lib/libjemalloc.so"}).environment)
    del environment["loaded"]
    said = NcclLoaded().judge_all(hosts_of({"hosts": {"n1": environment}}))["n1"]
    assert said.not_applicable == "no worker was started: a run, or the doctor without --quick, judges it"


def test_a_host_whose_workers_said_nothing_is_not_judged():
    environment = {"hosts": {"n1": dict(training().environment)}, "loaded": {"n2": {"nccl": "2.27.3"}}}
    said = NcclLoaded().judge_all(hosts_of(environment))["n1"]
    assert said.unknown[0].why == "no worker here said which NCCL it loaded"


def test_a_host_without_package_or_gpu_is_not_asked():
    assert judged({"nccl": "2.27.3"}, packages={"nvidia-nccl-cu12": None}).not_applicable
    assert NcclLoaded().judge(laptop()).not_applicable == "no GPU here"
    (said,) = NcclLoaded().judge_all([Host("n1", {})]).values()
    assert said.unknown


def test_what_workers_loaded_reaches_the_check():
    environment = {"hosts": {"n1": dict(training().environment)}, "loaded": {"n1": {"nccl": "2.21.5"}}}
    assert NcclLoaded().judge_all(hosts_of(environment))["n1"].faults
