from tests.facts.healthy.kernel_log import STAT
from tests.facts.machine import planted

FOLDER = "/sys/devices/system/cpu/cpufreq"


def plant(machine):
    machine.files["/proc/stat"] = f"{STAT}procs_running 3\n"
    machine.files["/proc/loadavg"] = "1.31 0.90 0.70 3/2811 99102\n"
    for policy in range(4):
        clocks = {"cpuinfo_max_freq": 3800000, "scaling_max_freq": 3800000, "affected_cpus": policy}
        machine.files |= planted(f"{FOLDER}/policy{policy}", clocks)
