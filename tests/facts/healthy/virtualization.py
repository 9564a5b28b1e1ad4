from tests.facts.machine import failed


def plant(machine):
    for option in ("--vm", "--container"):
        machine.programs[f"systemd-detect-virt {option}"] = failed(f"systemd-detect-virt {option}", "none")
    machine.files |= {"/sys/class/dmi/id/sys_vendor": "Supermicro\n", "/sys/class/dmi/id/product_name": "SYS-821GE\n"}
