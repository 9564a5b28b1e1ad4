from __future__ import annotations

import pytest

from clusterbench.checks.cpu_held_back import CpuHeldBack
from tests.facts.healthy import cgroup, held_cpus, processor, virtualization
from tests.facts.healthy.kernel_log import STAT
from tests.facts.machine import Machine, healthy

CPUFREQ = "/sys/devices/system/cpu/cpufreq"
GROUP = "/sys/fs/cgroup/job"
QUOTA = {
    "/proc/self/cgroup": "0::/job",
    "/sys/fs/cgroup/cgroup.controllers": "cpu",
    f"{GROUP}/cpu.max": "200000 100000",
    f"{GROUP}/cpu.stat": "nr_periods 2000\nnr_throttled 1200\n",
}


@pytest.fixture
def judged(tmp_path):
    """What is said of a host that is healthy but for these files; ``without`` are those that it lacks."""

    def of(*without, **files):
        machine = Machine()
        for part in (cgroup, processor, held_cpus, virtualization):
            part.plant(machine)
        machine.without(*without).files |= files
        return CpuHeldBack().judge(machine.host(tmp_path))

    return of


def test_a_healthy_host_says_what_was_looked_at(judged):
    said = judged()
    assert (said.faults, said.unknown) == ((), ())
    assert (
        said.healthy == "4 CPUs may reach their highest clock; no quota; 0.0% of their work was taken by a hypervisor"
    )


@pytest.mark.parametrize("name", ["scaling_max_freq", "bios_limit"])
def test_cores_at_half_their_clock_are_found(judged, name):
    (fault,) = judged(**{f"{CPUFREQ}/policy{policy}/{name}": "1900000" for policy in (0, 1)}).faults
    assert fault.what == "the clock of 2 of 4 CPUs may rise to 1.90 GHz only, and could to 3.80 GHz"
    assert fault.evidence == (f"/sys/devices/system/cpu/cpufreq/policy*/{name}: 1900000; cpuinfo_max_freq: 3800000")


def test_a_clock_that_is_rounded_down_is_none_that_is_held_back(judged):
    """May rise to 3.80 GHz only, and could to 3.80 GHz: that was a warning."""
    assert judged(**{f"{CPUFREQ}/policy{policy}/scaling_max_freq": "3799000" for policy in (0, 1)}).faults == ()


@pytest.mark.parametrize(
    ("bound", "faults"),
    [("2450000", 0), ("2000000", 1)],  # the highest of the table is the way to ask for boost: an EPYC 7763 has these
)
def test_a_bound_of_acpi_cpufreq_at_the_highest_of_its_table_keeps_no_core_from_boosting(judged, bound, faults):
    of_epyc = {
        "cpuinfo_max_freq": "3529052",
        "scaling_available_frequencies": "2450000 2000000 1500000",
        "scaling_max_freq": bound,
        "bios_limit": "2450000",
    }
    said = judged(**{f"{CPUFREQ}/policy{policy}/{name}": text for policy in range(4) for name, text in of_epyc.items()})
    assert len(said.faults) == faults


@pytest.mark.parametrize("stat", ["cpu  900000 0 90000 5000000", "cpu  9000000 0 90000 50000000 1 2 3"])
def test_a_kernel_that_counts_no_stolen_time_is_not_judged_by_it(judged, stat):
    assert [each.what for each in judged(**{"/proc/stat": f"{stat}\n"}).unknown] == ["time taken by a hypervisor"]


def test_a_quota_that_was_used_up_is_found_and_one_that_was_not_is_a_note(judged):
    (fault,) = judged("/sys/fs/cgroup", **QUOTA).faults
    assert fault.what == "the job sees 224 CPUs and has the time of 2, and stopped 1,200 times when it was used up"
    assert fault.severity is None
    (fault,) = judged("/sys/fs/cgroup", **QUOTA | {f"{GROUP}/cpu.stat": "nr_throttled 0\n"}).faults
    assert (fault.what, fault.severity) == ("the job sees 224 CPUs and has the time of 2", "note")


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_of_the_group_above_stops_those_below_which_count_nothing(judged, version):
    """A session of a user's slice, a step of a job: its own group has no quota, and nr_throttled 0."""
    root, own = {1: ("/sys/fs/cgroup/cpu", "4:cpu,cpuacct:/job/step"), 2: ("/sys/fs/cgroup", "0::/job/step")}[version]
    quota = {1: {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}, 2: {"cpu.max": "200000 100000"}}[version]
    files = {
        "/proc/self/cgroup": own,
        f"{root}/job/cpu.stat": "nr_periods 2000\nnr_throttled 1200\n",
        f"{root}/job/step/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
        **{f"{root}/job/{name}": text for name, text in quota.items()},
        **({"/sys/fs/cgroup/cgroup.controllers": "cpu"} if version == 2 else {}),
    }
    (fault,) = judged("/sys/fs/cgroup", **files).faults
    assert fault.what == "the job sees 224 CPUs and has the time of 2, and stopped 1,200 times when it was used up"


@pytest.mark.parametrize(("steal", "faults"), [(50_000, 0), (60_000, 1)])
def test_time_that_a_hypervisor_takes_is_found_above_the_bound(judged, steal, faults):
    said = judged(**{"/proc/stat": f"cpu  900000 0 90000 5000000 1000 0 10000 {steal} 0 0\n"})
    assert len(said.faults) == faults
    if faults:
        assert said.faults[0].what == "a hypervisor took 6% of the time in which CPUs had work"
        assert said.faults[0].evidence == "/proc/stat: steal 600 s of 10600 s with work since the start"


def test_what_does_not_say_its_clock_or_its_time_is_not_judged_there(judged):
    said = judged("/sys/devices/system/cpu/cpufreq", "/proc/stat")
    assert [(each.what, each.why) for each in said.unknown] == [
        ("time taken by a hypervisor", "/proc/stat is not there"),
        ("clocks of CPUs", f"{CPUFREQ} has no policy: firmware sets the clocks"),
    ]
    assert said.healthy == "no quota"


def test_a_host_that_has_just_started_says_nothing_of_its_hypervisor(judged):
    said = judged(**{"/proc/stat": "cpu  300 0 0 5000000 0 0 0 100 0 0\n"})
    assert said.unknown[0].why == "/proc/stat: CPUs had work for 4 s only since the start"


def test_clocks_of_a_virtual_machine_are_its_hosts(tmp_path):
    machine = Machine()
    for part in (cgroup, processor, held_cpus):
        part.plant(machine.without(CPUFREQ))
    machine.without(CPUFREQ).programs["systemd-detect-virt --vm"] = "kvm"
    said = CpuHeldBack().judge(machine.host(tmp_path))
    assert said.unknown == ()
    assert said.healthy.startswith("clocks are its host's, which are not seen here; no quota; 0.0% of their work was")


def busy(load, running):
    machine = healthy()
    machine.files |= {"/proc/loadavg": f"{load} 40.00 20.00 {running}/2811 9\n"}
    machine.files["/proc/stat"] = f"{STAT}procs_running {running}\n"
    return machine


def test_another_job_on_the_processors_is_found(tmp_path):
    """96 of 224 CPUs compute for a job that its scheduler forgot."""
    (fault,) = CpuHeldBack().judge(busy("96.40", 101).host(tmp_path)).faults
    assert fault.what == "96 tasks ran in the mean of the last minute, before this one, on 224 CPUs"
    assert fault.evidence == "/proc/loadavg: 96.4; /proc/stat: procs_running 101"


@pytest.mark.parametrize(
    ("load", "running"),
    [("50.00", 50), ("96.40", 4), ("2.00", 101)],  # little; has just ended, or tasks that wait for a disk; one moment
)
def test_work_that_is_little_or_has_ended_is_none(tmp_path, load, running):
    assert CpuHeldBack().judge(busy(load, running).host(tmp_path)).faults == ()


def test_a_host_that_does_not_train_may_be_busy(tmp_path):
    machine = busy("200.00", 220).without("/sys/class/infiniband", "gpus")
    machine.environment |= {"gpus": [], "pcie": []}
    assert CpuHeldBack().judge(machine.host(tmp_path)).faults == ()
