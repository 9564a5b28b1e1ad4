from clusterbench.facts.memory_errors import FOLDER
from tests.facts.machine import planted


def module(controller, number):
    return f"{FOLDER}/mc{controller}/dimm{number}"


def plant(machine):
    for controller in range(4):
        counts = {"ce_count": 0, "ue_count": 0, "seconds_since_reset": 86_400, "mc_name": "Intel_10nm"}
        machine.files |= planted(f"{FOLDER}/mc{controller}", counts)
        for number in range(2):
            own = {"dimm_label": f"CPU_SrcID#0_MC#{controller}_Chan#{number}_DIMM#0"}
            machine.files |= planted(module(controller, number), own | {"dimm_ce_count": 0, "dimm_ue_count": 0})
