_MEMINFO = """\
MemTotal:       2113412380 kB
MemFree:        2045111228 kB
MemAvailable:   2079551032 kB
HugePages_Total:       0
HugePages_Free:        0
Hugepagesize:       2048 kB
"""
_PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1031\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=973\n"


def plant(machine):
    machine.files |= {
        "/proc/meminfo": _MEMINFO,
        "/proc/sys/kernel/numa_balancing": "0\n",
        "/proc/sys/vm/swappiness": "10\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
    }
    for what in ("cpu", "memory", "io"):
        machine.files[f"/proc/pressure/{what}"] = _PRESSURE
