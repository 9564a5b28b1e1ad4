from tests.facts.healthy.infiniband import NUM_DEVICES


def plant(machine):
    for number in range(NUM_DEVICES):
        machine.files[f"/sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"mlx5_{number}\n"
        machine.files[f"/dev/infiniband/uverbs{number}"] = ""
        machine.files[f"/dev/nvidia{number}"] = ""
    for name in ("infiniband/rdma_cm", "nvidiactl", "nvidia-uvm", "gdrdrv"):
        machine.files[f"/dev/{name}"] = ""
