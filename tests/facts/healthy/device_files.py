from tests.facts.healthy.described import NUM_GPUS


def plant(machine):
    names = ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(NUM_GPUS)))
    machine.files |= {f"/dev/{name}": "" for name in names}
    machine.files["/sys/devices/system/node/online"] = "0-1\n"
    machine.files["/proc/self/numa_maps"] = ""
