"""GPUs whose NVLink reaches over hosts."""


def change(machine):
    machine.environment["gpus"] = [gpu | {"name": "NVIDIA GB200"} for gpu in machine.environment["gpus"]]
    machine.files["/dev/nvidia-caps-imex-channels/channel0"] = ""
