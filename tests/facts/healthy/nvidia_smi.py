from tests.facts.healthy.described import NUM_GPUS


def plant(machine):
    rows = (f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{number})\n" for number in range(NUM_GPUS))
    machine.programs["nvidia-smi -L"] = "".join(rows)
