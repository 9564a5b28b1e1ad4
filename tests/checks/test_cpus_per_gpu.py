from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.cpus_per_gpu import CpusPerGpu
from clusterbench.facts import Files
from clusterbench.facts.cgroup import Cgroup
from clusterbench.facts.processor import Processor
from tests.facts.machine import Machine, laptop, training


@pytest.fixture
def facts(tmp_path):
    empty = Files(tmp_path, Machine().run)
    return replace(Processor.read(empty), online="0-223", usable="0-223"), replace(Cgroup.read(empty), path="/job")


def test_a_cpuset_of_two_for_each_is_found(facts):
    processor, cgroup = facts
    (fault,) = CpusPerGpu().judge(training(processor, replace(cgroup, cpus="0-15"))).faults
    assert fault.what == "the job has 16 CPUs for 8 GPUs, and each needs 4"
    assert fault.evidence == "cpuset of /job: 0-15"


def test_a_quota_is_found_though_all_cpus_are_shown(facts):
    processor, cgroup = facts
    (fault,) = CpusPerGpu().judge(training(processor, replace(cgroup, cpu_quota=8.0, num_throttled=1200))).faults
    assert fault.what == "the job's quota is 8 CPUs for 8 GPUs, and each needs 4"
    assert fault.evidence == "/proc/self/cgroup: /job, cpu quota 8; stopped 1,200 times"


def test_a_process_bound_to_one_core_is_found(facts):
    processor, cgroup = facts
    (fault,) = CpusPerGpu().judge(training(replace(processor, usable="7"), cgroup)).faults
    assert fault.what == "the process that was started here may use 1 CPU, and a rank needs 4"


@pytest.mark.parametrize(("cpus", "faults"), [("0-31", 0), ("0-30", 1)])
def test_at_the_bound(facts, cpus, faults):
    processor, cgroup = facts
    assert len(CpusPerGpu().judge(training(processor, replace(cgroup, cpus=cpus))).faults) == faults


def test_a_rank_bound_to_its_part_is_in_order(facts):
    processor, cgroup = facts
    said = CpusPerGpu().judge(training(replace(processor, usable="0-13,112-125"), cgroup))
    assert said.healthy == "224 CPUs for 8 GPUs"


def test_without_the_mask_it_is_not_judged(facts):
    processor, cgroup = facts
    (said,) = CpusPerGpu().judge_all([training(replace(processor, usable=None), cgroup)]).values()
    assert said.unknown[0].why == "/proc/self/status is not there"


def test_a_host_without_gpus_is_not_asked(facts):
    assert CpusPerGpu().judge(laptop(*facts)).not_applicable == "no GPU here"
