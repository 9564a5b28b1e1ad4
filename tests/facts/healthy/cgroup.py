from tests.facts.machine import planted

GROUP = "/sys/fs/cgroup/system.slice/slurmstepd.scope"


def plant(machine):
    machine.files["/proc/self/cgroup"] = "0::/system.slice/slurmstepd.scope\n"
    machine.files["/sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu io memory hugetlb pids\n"
    machine.files |= planted(
        GROUP,
        {
            "cpu.max": "max 100000",
            "cpuset.cpus.effective": "0-223",
            "memory.max": "max",
            "memory.current": 2**30,
            "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
            "pids.max": "max",
            "cpu.stat": "usage_usec 1\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0",
        },
    )
