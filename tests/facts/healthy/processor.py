from tests.facts.machine import planted

FOLDER = "/sys/devices/system/cpu"
ONLINE = "0-223"


def plant(machine):
    machine.files["/proc/self/status"] = f"Name:\tpython\nThreads:\t1\nCpus_allowed_list:\t{ONLINE}\n"
    machine.files |= planted(FOLDER, {"online": ONLINE, "cpu0/topology/thread_siblings_list": "0,112"})
    machine.files |= planted(
        FOLDER, {"cpu0/cpufreq/scaling_driver": "intel_cpufreq", "cpuidle/current_driver": "intel_idle"}
    )
    for policy in range(4):
        machine.files |= planted(
            f"{FOLDER}/cpufreq/policy{policy}",
            {
                "scaling_governor": "performance",
                "affected_cpus": policy,
                "energy_performance_preference": "performance",
            },
        )
    for number, (name, latency) in enumerate((("POLL", 0), ("C1", 1), ("C1E", 2))):
        state = f"{FOLDER}/cpu0/cpuidle/state{number}"
        machine.files |= planted(state, {"name": name, "latency": latency, "disable": 0})
