"""The kernel's log: every form of its lines, every kind of fault, and what only looks like one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterbench.errors import ToolError
from clusterbench.tools.kernel_log import HARMLESS, KINDS, events, lines, read

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
SAID = {
    XID: "xid",
    "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.": "xid",
    # nv-pci.c of NVIDIA's open kernel modules 570; a GPU that is lost is told of by thousands of lines like the second
    "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus and is not "
    "responding to commands.": "xid",
    "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)": "xid",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).": "gpu_start",
    "NVRM: None of the NVIDIA devices were initialized.": "gpu_start",
    # drivers/gpu/drm/amd/amdgpu/amdgpu_{ras,device,umc,job}.c
    "amdgpu 0000:c1:00.0: amdgpu: die: 0 1 new uncorrectable hardware errors detected in umc block": "amd_gpu",
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset(3) failed": "amd_gpu",
    "amdgpu 0000:c1:00.0: amdgpu: Saved bad pages 128 reaches threshold value 128": "amd_gpu",
    "amdgpu 0000:c1:00.0: amdgpu: Fatal error during GPU init": "amd_gpu",
    "[drm:amdgpu_device_init [amdgpu]] *ERROR* hw_init of IP block <psp> failed -22": "amd_gpu",
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!": "amd_gpu_reset",
    "amdgpu 0000:c1:00.0: amdgpu: ring sdma0 timeout, signaled seq=1, emitted seq=2": "amd_gpu_reset",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring page1 timeout, signaled seq=1, emitted seq=2": "amd_gpu_reset",
    "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": "sxid",
    "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Data {0x50610002, 0x10100030}": "sxid_data",
    "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1474)": "gpu_start",
    "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!": "driver_stuck",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping": "peermem",
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).": "slot_power",
    "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature": "heat",
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 1, Cable error, Bus stuck": "cable",
    "mlx5_core 0000:18:00.0: poll_health:739: device's health compromised - reached miss count": "nic_failed",
    # mlx5/core/main.c and health.c; the driver core's line has the card behind "of" before Linux 6.10
    "mlx5_core 0000:03:00.0: probe_one:1507:(pid 1): mlx5_init_one failed with error code -16": "nic_failed",
    "mlx5_core 0000:03:00.0: mlx5_function_setup:1120: Firmware over 120000 MS in pre-initializing state, aborting": (
        "nic_failed"
    ),
    "mlx5_core 0000:03:00.0: mlx5_function_setup:1140: Firmware over 2000 MS in initializing state, aborting": (
        "nic_failed"
    ),
    "mlx5_core: probe of 0000:03:00.0 failed with error -16": "nic_failed",
    "mlx5_core 0000:03:00.0: print_health_info:424:(pid 0): Health issue observed, firmware internal error, "
    "severity(3) ERROR:": "nic_failed",
    "mlx5_core 0000:03:00.0: mlx5_pci_err_detected Device state = 2 health sensors: 1 pci_status: 1. Exit, result = 3, "
    "need reset": "nic_failed",
    "mlx5_core 0000:03:00.0: probe with driver mlx5_core failed with error -16": "nic_failed",
    # mlx5/core/main.c: after a reset; the driver core's lines of a GPU, before and after Linux 6.10
    "mlx5_core 0000:03:00.0: mlx5_load_one:1520:(pid 7): mlx5_load_one failed with error code -110": "nic_failed",
    "nvidia: probe of 0000:18:00.0 failed with error -1": "gpu_start",
    "nvidia 0000:18:00.0: probe with driver nvidia failed with error -1": "gpu_start",
    # fs/file_table.c and block/blk-core.c
    "VFS: file-max limit 1000000 reached": "file_max",
    "python: attempt to access beyond end of device": "storage",
    "mlx5_core 0000:03:00.0: mlx5_health_try_recover:332: health recovery flow aborted, PCI reads still not working": (
        "nic_failed"
    ),
    # net/sched/sch_generic.c, in the words of 5.4 and of 6.12, and mlx5/core/en_main.c
    "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 5 timed out": "nic_queue",
    "mlx5_core 0000:1a:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 15000 ms": "nic_queue",
    "mlx5_core 0000:1a:00.0 ens1f0np0: TX timeout detected": "nic_queue",
    "ib0: transmit timeout: latency 5000 msecs": "nic_queue",  # drivers/infiniband/ulp/ipoib/ipoib_main.c
    "mlx5_core 0000:18:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link": "pcie_limited",
    "pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:18:00.0": "aer",
    "pcieport 0000:15:01.0: AER: Multiple Uncorrected (Fatal) error received: 0000:18:00.0": "aer",
    "pcieport 0000:15:01.0: AER: Uncorrectable (Fatal) error message received from 0000:18:00.0": "aer",
    "pcieport 0000:15:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer": "aer_corrected",
    # drivers/pci/pcie/aer.c of 5.4 says "AER: " behind the address
    "nvidia 0000:81:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer": "aer",
    "pcieport 0000:00:01.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer": "aer_corrected",
    # drivers/pci/pcie/dpc.c, drivers/pci/pci.c
    "pcieport 0000:15:01.0: pciehp: Slot(4): Link Down": "slot_link",
    "pcieport 0000:15:01.0: pciehp: Slot(4-1): Card not present": "slot_link",
    # intel/dmar.c of 5.4 and of 6.8; amd/iommu.c of a device without a driver and of one with it
    "DMAR: [DMA Write] Request device [5c:00.0] fault addr ffc00000 [fault reason 05] PTE Write access is not set": (
        "iommu"
    ),
    "DMAR: [DMA Read NO_PASID] Request device [5c:00.0] fault addr 0xffc00000 [fault reason 0x06] PTE Read access": (
        "iommu"
    ),
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:5c:00.0 domain=0x0017 address=0xffc0 flags=0x0020]": "iommu",
    "nvidia 0000:5c:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0017 address=0xffc0 flags=0x0020]": "iommu",
    "pcieport 0000:97:01.0: DPC: containment event, status:0x1f01 source:0x0000": "aer",
    "nvidia 0000:9b:00.0: Unable to change power state from D3cold to D0, device inaccessible": "aer",
    "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]": "stuck",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "stuck",
    "INFO: task jfsmount:136986 blocked for more than 120 seconds.": "stuck",
    # kernel/hung_task.c prints "task %s:%d", and names of kernel workers and of Ray's processes hold colons.
    "INFO: task kworker/u256:3:98765 blocked for more than 122 seconds.": "stuck",
    "INFO: task kworker/12:1H:9876 blocked for more than 122 seconds.": "stuck",
    "INFO: task ray::IDLE:789 blocked for more than 120 seconds.": "stuck",
    # kernel/rcu/tree_exp.h
    "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-...D } 62703 jiffies": "stuck",
    "Out of memory: Killed process 4711 (python3) total-vm:9kB": "oom",
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB": "oom_cgroup",
    "{1}[Hardware Error]: event severity: fatal": "machine_check",
    # drivers/edac/mce_amd.c, and arch/x86/kernel/cpu/mce/core.c: bit 61 of the last word says "uncorrected"
    "[Hardware Error]: System Fatal error.": "machine_check",
    "[Hardware Error]: Uncorrected, software restartable error.": "machine_check",
    "[Hardware Error]: Uncorrected, software containable error.": "machine_check",
    "mce: [Hardware Error]: CPU 10: Machine Check: 0 Bank 5: bea0000000000108": "machine_check",
    "mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 7: be00000000800400": "machine_check",
    # mm/memory-failure.c
    "Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Recovered": "machine_check",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0": "memory_corrected",
    "mce: CPU3: Package temperature above threshold, cpu clock throttled (total events = 1)": "cpu_heat",
    "Kernel panic - not syncing: Fatal exception": "panic",
    # arch/x86/mm/fault.c since 5.1, arch/arm64/mm/fault.c
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": "panic",
    "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008": "panic",
    "python3[25]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3d]": "nccl_crash",
    # arch/x86/kernel/traps.c
    "traps: python3[25] general protection fault ip:7f3 sp:7ff error:0 in libnccl.so.2.14.3[7f+1]": "nccl_crash",
    # fs/btrfs/messages.c, drivers/nvme/host/pci.c
    "BTRFS: error (device sda1) in btrfs_commit_transaction:2271: errno=-5 IO failure": "storage",
    "BTRFS: error (device sda1 state EA) in btrfs_sync_log:3100: errno=-5 IO failure": "storage",
    "nvme nvme0: Removing after probe failure status: -19": "storage",
    "EXT4-fs (md0): Remounting filesystem read-only": "storage",
    "EXT4-fs error (device nvme0n1): ext4_find_entry:1455: inode #2: comm python: reading directory": "storage",
    "XFS (nvme0n1): log I/O error -5": "storage",
    "XFS (nvme0n1): Log I/O Error (0x2) detected at xlog_ioend_work. Shutting down filesystem.": "storage",
    "XFS (nvme0n1): Metadata corruption detected at xfs_agi_verify": "storage",
    "I/O error, dev srv0, sector 0 op 0x0:(READ)": "storage",
    "critical medium error, dev nvme1n1, sector 1234 op 0x0:(READ) flags 0x0": "storage",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10": "storage",
    "nfs: server 192.0.2.16 not responding, timed out": "storage",
    # drivers/nvme/host/core.c, drivers/ata/libata-eh.c, drivers/scsi/scsi_logging.c
    "nvme nvme3: Device not ready; aborting reset, CSTS=0x1": "storage",
    "nvme2n1: Read(0x2) @ LBA 123456, 256 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81)": "storage",
    "ata1.00: failed command: READ FPDMA QUEUED": "storage",
    "sd 0:0:0:0: [sda] tag#12 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE": "storage",
    # fs/nfs/nfs4state.c, fs/smb/client/connect.c, fs/ceph/mds_client.c
    "NFS: state manager: check lease failed on NFSv4 server store1 with error 13": "storage",
    "CIFS: VFS: \\\\store1 has not responded in 180 seconds. Reconnecting...": "storage",
    "ceph: mds0 hung": "storage",
    "libceph: osd12 down": "storage",
    # lustre/ptlrpc/client.c, lnet/klnds/o2iblnd
    "Lustre: 10110:0:(client.c:2116:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: "
    "[sent 1630583792/real 1630583792]": "storage",
    "LustreError: 11-0: fs1-OST0001-osc-ffff88: operation ost_read to node 192.0.2.1@o2ib failed: rc = -107": "storage",
    # kernel/time/clocksource.c, arch/x86/kernel/tsc_sync.c
    "clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable because the skew is too large:": (
        "clock_unstable"
    ),
    "TSC found unstable after boot, most likely due to broken BIOS. Use 'tsc=unstable'.": "clock_unstable",
    "LNetError: 2431:0:(o2iblnd_cb.c:3351:kiblnd_check_txs_locked()) Timed out tx: active_txs, 0 seconds": "storage",
}


@pytest.mark.parametrize("text", SAID)
def test_each_fault_is_of_its_kind(text: str) -> None:
    (event,) = events(lines(f"[   12.345678] {text}"))
    assert (event.kind, event.first, event.text) == (SAID[text], "12.345678 s after boot", text)


def test_no_kind_is_without_a_line_here() -> None:
    assert {*SAID.values(), "link_down"} == {*KINDS}


LOOKS_LIKE = [
    "sched_clock: Marking unstable (2183020541, 1233641)<-(2210112312, -25858130)",
    "clocksource: Switched to clocksource hpet",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "Buffer I/O error on dev sr0, logical block 0, async page read",
    "critical target error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "I/O error, dev loop3, sector 0",
    "amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected in total in umc block",
    "amdgpu 0000:c1:00.0: amdgpu: 4 correctable hardware errors detected in total in umc block",
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset succeeded, trying to resume",
    "[drm] amdgpu kernel modesetting enabled.",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "LNet: Added LNI 192.0.2.7@o2ib [8/256/0/180]",
    "Lustre: fs1-MDT0000-mdc-ffff88: Connection restored to 192.0.2.1@o2ib (at 192.0.2.1@o2ib)",
    "libceph: osd12 (1)192.0.2.5:6801 socket closed (con state OPEN)",
    "ceph: mds0 recovery completed",
    "CIFS: Attempting to mount \\\\store1\\data",
    "mlx5_core 0000:18:00.0: print_health_info:424:(pid 0): Health issue observed, High temperature, severity(6) INFO:",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
    "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
    "nvidia 0000:9b:00.0: enabling device (0140 -> 0142)",
    "XFS (nvme0n1): Unmounting Filesystem",
    "BTRFS info (device sda1): using crc32c (crc32c-intel) checksum algorithm",
    "BTRFS: device fsid 2f3c devid 1 transid 7 /dev/sda1 scanned by systemd-udevd",
    "nvme nvme0: 8/0/0 default/read/poll queues",
    "traps: python3[25] general protection fault ip:7f3 sp:7ff error:0 in libc.so.6[7f+1]",
    "mlx5_cmd_out_err:838:(pid 14): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)",
    "pcieport 0000:15:01.0: AER: enabled with IRQ 34",
    "pcieport 0000:15:01.0: pciehp: Slot #4 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock-",
    "pcieport 0000:15:01.0: pciehp: Slot(4): Link Up",
    "DMAR: DRHD base: 0x000000fed90000 flags: 0x0",
    "AMD-Vi: Interrupt remapping enabled",
    "pcieport 0000:15:01.0: AER: Corrected error received: 0000:16:00.0",
    "mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged",
    "mlx5_core 0000:03:00.0: wait_fw_init:199:(pid 7): Waiting for FW initialization, timeout abort in 100s (0x1)",
    "mlx5_core 0000:03:00.0: firmware version: 28.39.2048",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "mce: [Hardware Error]: Machine check events logged",
    "mce: [Hardware Error]: CPU 10: Machine Check: 0 Bank 5: 9c2000000001009f",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "nvidia: loading out-of-tree module taints kernel.",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message for mlx5.',
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).",
    "INFO: task kworker/u256:3:98765 is blocked on a mutex likely owned by task python:4711.",
    "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 11-... } 7 jiffies s: 9981 root: 0x800/.",
    "sysctl: soft lockup detector uses watchdog_thresh 10",
    "mlx5_core 0000:18:00.0: Link speed: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
]


def test_what_only_looks_like_a_fault_is_silent() -> None:
    assert events(lines("\n".join(f"[    1.000000] {text}" for text in LOOKS_LIKE))) == []
    assert all(any(re.search(pattern, text) for text in LOOKS_LIKE) for pattern, _ in HARMLESS)


@pytest.mark.parametrize(
    ("ahead", "time"),
    [
        ("[12345.678901] ", "12345.678901 s after boot"),
        ("[12345.678901][ T1234] ", "12345.678901 s after boot"),
        ("kern  :err   : [12345.678901] ", "12345.678901 s after boot"),
        ("3,900,12345678901,-;", "12345.678901 s after boot"),
        ("[Sun Mar  1 16:24:18 2026] ", "Sun Mar  1 16:24:18 2026"),
        ("2026-03-01T16:24:18,123456+01:00 ", "2026-03-01T16:24:18"),
        ("2026-03-01T16:24:18+0100 cb17 kernel: ", "2026-03-01T16:24:18"),
        ("kern  :err   : 2026-03-01T16:24:18,123456+01:00 ", "2026-03-01T16:24:18"),
        ("<3>[12345.678901] ", "12345.678901 s after boot"),
        ("[Mar 1 16:24] ", "Mar 1 16:24"),
        ("[  +0.000012] ", ""),
        ("Mar  1 16:24:18 cb17 kernel: ", "Mar  1 16:24:18"),
        ("Mar  1 16:24:18 cb17 kernel: [12345.678901] ", "Mar  1 16:24:18"),
        ("[pod/dmesg-7/main] [12345.678901] ", "12345.678901 s after boot"),
        ("", ""),
    ],
)
def test_times_of_every_form(ahead: str, time: str) -> None:
    (event,) = events(lines(ahead + XID))
    assert (event.first, event.where, event.code, event.text) == (time, "GPU 0000:9b:00", 79, XID)


@pytest.mark.parametrize(
    "ahead",
    [
        "[   12.345678] ",
        "[Sun Mar  1 16:24:18 2026] ",  # dmesg -T
        "2026-03-01T16:24:18,123456+01:00 ",  # dmesg --time-format iso
        "kern  :warn  : [   12.345678] ",  # dmesg -x
        "kern  :warn  : [Sun Mar  1 16:24:18 2026] ",
        "kern  :warn  : 2026-03-01T16:24:18,123456+01:00 ",
        "<4>[   12.345678] ",  # dmesg -r, pstore
        "[Mar 1 16:24] ",  # dmesg -H
        "[  +0.000012] ",
        "4,900,12345678,-;",
        "Mar  1 16:24:18 cb17 kernel: ",
    ],
)
def test_a_kernels_log_is_known_by_the_form_of_its_lines_alone(ahead: str) -> None:
    (event,) = events(read(f"{ahead}nfs: server 192.0.2.16 not responding, still trying\n"))
    assert (event.kind, event.where) == ("storage", "192.0.2.16")


@pytest.mark.parametrize(
    "text",
    [
        "[1594978465.914536] 64 bytes from 192.0.2.16: icmp_seq=1 ttl=59 time=31.4 ms\n",  # ping -D
        "[1757492049.543053] [node-a:627036:0]   | active message by ucp_am_send*(egr) |\n",  # UCX
        "[Sun Mar 01 16:24:18 2026] [notice] Apache/2.2.15 (Unix) configured\n",
    ],
)
def test_other_programs_with_times_in_brackets_are_none(text: str) -> None:
    with pytest.raises(ToolError):
        read(text)


def test_what_comes_again_after_a_day_is_an_event_of_its_own() -> None:
    log = "".join(f"[{seconds}.000000] {XID}\n" for seconds in (0, 86400, 86401))
    assert [(event.count, event.first, event.last) for event in events(lines(log))] == [
        (2, "0.000000 s after boot", "86400.000000 s after boot"),
        (1, "86401.000000 s after boot", "86401.000000 s after boot"),
    ]


def test_a_gpu_that_is_told_of_in_three_lines_is_named() -> None:
    """As printed by the driver at once, with and without a time before each line, and as rsyslog joins it.

    Source: NVIDIA/NVSentinel, issue 155; leptonai/gpud, pull request 1209.
    """
    said = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    time = "[ 1843.308145] "
    logs = (
        time + ("\n" + " " * len(time)).join(said),
        "".join(f"{time}{text}\n" for text in said),
        f"Feb 14 05:03:42 gpu-1 kernel: {'#012'.join(said)}",
        f"Feb 14 05:03:42 gpu-1 kernel: {said[0]}\n{' ' * 30}{said[1]}\n{' ' * 30}{said[2]}\n",
        f"{time}Linux version 6.8.0\n{time}" + "\n".join(said) + f"\n{time}NVRM: loading NVIDIA UNIX Kernel Module\n",
    )
    for log in logs:
        (event,) = events(lines(log))
        assert (event.kind, event.code, event.where) == ("xid", 79, "GPU 0000:b3:00")


def test_what_a_driver_refuses_to_take_is_a_gpu_that_did_not_start() -> None:
    said = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2901)\n"
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n"
    )
    (event,) = events(lines(said))
    assert (event.kind, event.where) == ("gpu_start", "GPU 0000:b3:00")


def test_one_device_is_one_event_however_its_lines_name_it() -> None:
    said = (
        "pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error received: 0000:97:01.0\n"
        "pcieport 0000:97:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)\n"
        "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
        "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)\n"
    )
    assert [event.where for event in events(lines(said))] == ["pcieport 0000:97:01.0", "GPU 0000:9b:00"]


def test_errors_that_one_line_counts_are_counted() -> None:
    """EDAC prints how many came together: 32767 is as many as it can count.

    Source: leptonai/gpud, ``components/memory``.
    """
    said = "EDAC MC1: 32767 CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1 (channel:1 slot:1)\n"
    (event,) = events(lines(said * 2))
    assert (event.where, event.count) == ("MC1", 65534)


def reported(severity: str, *sections: tuple[str, str, str]) -> str:
    """What firmware reports of an event, as ``drivers/firmware/efi/cper.c`` prints it."""
    said = [f"event severity: {severity}"]
    for number, (of_section, kind, fields) in enumerate(sections):
        said += [f" Error {number}, type: {of_section}", f"  section_type: {kind} error", f"  {fields}"]
    return "".join(f"[    1.000000] {{1}}[Hardware Error]: {text}\n" for text in said)


PCIE = ("PCIe", "device_id: 0000:b3:00.0")
MEMORY = ("memory", "physical_address: 0x0000000116c60000")


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (reported("recoverable", ("recoverable", *PCIE)), [("aer", "0000:b3:00.0")]),
        (reported("corrected", ("corrected", *PCIE)), [("aer_corrected", "0000:b3:00.0")]),
        (reported("fatal", ("fatal", "PCIe", "port_type: 4, root port")), [("aer", "")]),
        (reported("recoverable", ("recoverable", *MEMORY)), [("machine_check", "")]),
        (reported("corrected", ("corrected", *MEMORY)), [("memory_corrected", "")]),
        (reported("fatal", ("fatal", "general processor", "error_type: 0x02")), [("machine_check", "")]),
        (
            reported("fatal", ("corrected", *MEMORY), ("fatal", *PCIE)),
            [("memory_corrected", ""), ("aer", "0000:b3:00.0")],
        ),
        (
            reported("recoverable") + reported("corrected", ("corrected", *PCIE)),
            [("machine_check", ""), ("aer_corrected", "0000:b3:00.0")],
        ),
        (reported("info", ("info", *PCIE)), []),
    ],
)
def test_an_error_that_firmware_reports_is_of_what_its_section_says(log: str, found: list[tuple[str, str]]) -> None:
    assert [(event.kind, event.where) for event in events(lines(log))] == found
    assert [(event.kind, event.where, event.count) for event in events(lines(log * 2))] == [
        (*each, 2) for each in found
    ]


def test_a_section_without_a_severity_of_its_own_has_the_events() -> None:
    log = "\n".join(line for line in reported("corrected", ("corrected", *PCIE)).splitlines() if ", type: " not in line)
    assert [(event.kind, event.where) for event in events(lines(log))] == [("aer_corrected", "0000:b3:00.0")]


def test_recovery_actions_of_a_gpu_are_events_of_their_own():
    """Wording of NVIDIA's open kernel modules; the action in words is the driver's: Node Reboot Required, OS Reboot."""
    said = [
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    ]
    found = events(lines("".join(f"[    1.000000] {text}\n" for text in (*said, said[0]))))
    assert [(event.code, event.count, event.text) for event in found] == [(154, 2, said[0]), (154, 1, said[1])]


def test_a_text_without_a_line_of_a_kernel_is_refused() -> None:
    with pytest.raises(ToolError, match="no line of this is from a kernel's log: 'hello'"):
        read("hello\n")


@real
def test_a_gpu_whose_processor_does_not_answer() -> None:
    (event,) = events(read((SAMPLES / "dmesg_xid119.txt").read_text()))
    assert (event.kind, event.code, event.count, event.last) == ("xid", 119, 5, "Sun Feb 23 16:30:13 2025")
