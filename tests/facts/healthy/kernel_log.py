RECORDS = """\
5,0,0,-;Linux version 6.8.0-60-generic (buildd@example) (x86_64-linux-gnu-gcc-13)
6,811,12345678,-;mlx5_core 0000:18:00.0: firmware version: 28.39.2048
 SUBSYSTEM=pci
 DEVICE=+pci:0000:18:00.0
6,812,12445678,-;mlx5_core 0000:18:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)
6,813,12545678,-;mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged
6,814,13345678,-;mlx5_core 0000:18:00.0 ibs0: Link up
6,815,13445678,-;pcieport 0000:15:01.0: AER: enabled with IRQ 34
6,816,13545678,-;mce: CPU0: Thermal monitoring enabled (TM1)
6,817,14345678,-;nvidia: module license 'NVIDIA' taints kernel.
6,818,15345678,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  560.35.03
3,819,16345678,-;mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 4711): ACCESS_REG(0x805) op_mod(0x1) failed, \
status bad resource(0x5), syndrome (0x305684), err(-22)
"""
STAT = "cpu  900000 0 90000 5000000 1000 0 10000 0 0 0\nbtime 1772460000\n"


def plant(machine):
    machine.files["/dev/kmsg"] = RECORDS
    machine.files["/proc/stat"] = STAT


def logging(*texts):
    """A healthy host whose kernel also said this, 99 s after boot."""
    from tests.facts.machine import healthy

    machine = healthy()
    machine.files["/dev/kmsg"] = RECORDS + "".join(f"3,{900 + n},99000000,-;{text}\n" for n, text in enumerate(texts))
    return machine


def unreadable(folder):
    """A host whose log only root may read, as its facts."""
    from tests.facts.machine import healthy

    host = healthy().host(folder / "unreadable")
    log = host.environment["facts"]["kernel_log"]
    log |= {"source": None, "events": [], "unread": {"/dev/kmsg": "may be read by root only"}}
    return host
