"""``clusterbench doctor --log``: what files say that people have at hand, recognised by content."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.doctor.logs import examine_logs
from clusterbench.doctor.text import text, verdict
from clusterbench.errors import SuiteError
from tests.tools.test_nccl_log import WHOLE
from tests.tools.test_nvidia_smi_table import TABLE

WHOLE_WITH_A_FAULT = "node-a:700:711 [0] n.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1\n"
XID = "[Sun Mar  1 16:24:18 2026] NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=python, Timeout after 6s of waiting\n"
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Port 1:
		State: {state}
		Physical state: {physical}
		Rate: 400
		Base lid: 75
		LMC: 0
		SM lid: 1
		Link layer: InfiniBand
"""
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:0015:5dff:fd34:11eb
	base lid:	 0x33bf
	sm lid:		 0x1
	state:		 {state}
	phys state:	 {physical}
	rate:		 200 Gb/sec (4X HDR)
	link_layer:	 InfiniBand
"""
DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.41.1000
	vendor_part_id:			4129
	board_id:			MT_0000000834
	phys_port_cnt:			1
		port:	1
			state:			{state}
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			1
			port_lid:		75
			link_layer:		InfiniBand
"""
SMI = """\
==============NVSMI LOG==============

Driver Version                            : 560.35.03
CUDA Version                              : 12.6

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU Reset Status
        Reset Required                    : No
    PCI
        Bus Id                            : 00000000:1B:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 16x
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    Compute Mode                          : Default
    ECC Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 9
            SRAM Uncorrectable SEC-DED    : 9
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    GPU Power Readings
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Module Power Readings
        Current Power Limit               : N/A
    Fabric
        State                             : Completed
        Status                            : Success
"""
FABRIC = "[Mar 01 2026 19:17:49] [{level}] [tid 1374] {text}\n"
SWITCH = "detected NVSwitch {word} error {code} on fid 0 on NVSwitch pci bus id 00000000:83:00.0 physical id 0 port 34"


def test_a_kernel_log_is_judged_by_the_checks_of_hosts(examined):
    examination, kind = examined(XID * 2)
    assert kind == "a kernel's log"
    (found,) = examination.found
    assert (found.name, found.severity, found.hosts, found.where) == ("xid", "error", ("said.txt",), "GPU 0000:9b:00")
    assert found.evidence == f"said.txt:1: {XID[27:].strip()}"
    assert examination.exit_code == 1
    assert verdict(examination).startswith("SUSPECT: 1 error on 1 of 1 host; in order: ")
    assert "memlock" not in text(examination)


@pytest.mark.parametrize(
    "ahead", ["cb17: ", "[pod/dmesg-7/main] ", "node0-1  | ", "2026-03-01T16:24:18+01:00 cb17 kernel: "]
)
def test_what_stands_before_lines_hides_no_fault(examined, ahead):
    examination, _ = examined(ahead + XID[27:])
    assert [found.name for found in examination.found] == ["xid"]


def test_libraries_that_are_not_the_kernel_modules_are_found(examined):
    versions = (
        "the client has the version 535.54.03, but\n[    2.000000] NVRM: this kernel module has the version 535.86.10."
    )
    for said in (versions, versions.replace("\n[    2.000000] NVRM:", "")):
        examination, _ = examined(f"[    1.000000] Linux version 6.8.0\n[    2.000000] NVRM: API mismatch: {said}\n")
        (found,) = examination.found
        assert (found.name, "libraries 535.54.03," in found.what) == ("driver_mismatch", True)


def test_a_host_of_which_no_line_is_the_kernels_is_not_judged_by_them(examined):
    said = "Mar 14 09:26:01 cb07 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    said += "Mar 14 09:26:02 cb08 sshd[812]: Accepted publickey for root\n"
    said += "Mar 14 09:26:04 cb09 kernel: eth0: link up\n"
    examination, _ = examined(said)
    assert {host for healthy in examination.healthy for host in healthy.hosts} == {"cb07", "cb09"}
    (unknown,) = examination.not_judged
    assert (unknown.name, unknown.hosts) == ("a kernel's log", ("cb08",))
    assert unknown.why == "none of its lines in the text is the kernel's"


def test_a_kernel_log_without_faults_is_healthy(examined):
    examination, _ = examined("[    0.000000] Linux version 6.8.0-60-generic\n[    1.0] ACPI: Early table checksum\n")
    assert (examination.word, examination.exit_code, examination.found) == ("HEALTHY", 0, ())


@pytest.mark.parametrize(
    ("said", "kind", "what"),
    [
        (IBSTAT.format(state="Down", physical="Polling"), "ibstat", "is DOWN, its link Polling"),
        (IBSTAT.format(state="Initializing", physical="LinkUp"), "ibstat", "is INIT, its link LinkUp"),
        (IBSTATUS.format(state="1: DOWN", physical="5: LinkUp"), "ibstatus", "is DOWN, its link LinkUp"),
        (DEVINFO.format(state="PORT_DOWN (1)"), "ibv_devinfo", "is DOWN, its link state is not said"),
    ],
)
def test_a_port_that_is_down_is_found_whatever_program_says_so(examined, said, kind, what):
    examination, taken = examined(said)
    found = [each for each in examination.found if each.name == "port_state"]
    assert (taken, [(each.where, each.what) for each in found]) == (kind, [("mlx5_0 port 1", what)])
    assert found[0].evidence.startswith("said.txt:1, in the words of /sys/class/infiniband/mlx5_0/ports/1/state: ")


@pytest.mark.parametrize(
    "said",
    [
        IBSTAT.format(state="Active", physical="LinkUp"),
        IBSTATUS.format(state="4: ACTIVE", physical="5: LinkUp"),
        DEVINFO.format(state="PORT_ACTIVE (4)"),
    ],
)
def test_ports_that_are_active_are_in_order(examined, said):
    examination, _ = examined(said)
    assert (examination.found, examination.exit_code) == ((), 0)
    assert "port_state" in {healthy.name for healthy in examination.healthy}


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ("IIIIIIII", None),
        ("IIIEIIII", "mlx5_3 port 1: Ethernet, and the 7 others of its model are InfiniBand: set wrong, or meant"),
        ("IIIIIIIIE", None),  # as ibstat_a100_all_active.txt of the samples
        ("IIIIEEEE", None),
    ],
)
def test_one_of_eight_alike_cards_of_another_link_layer_is_not_in_order(examined, layers, why):
    card = IBSTAT.format(state="Active", physical="LinkUp")
    names = {"I": "InfiniBand", "E": "Ethernet"}
    text = "".join(
        card.replace("mlx5_0", f"mlx5_{number}").replace("InfiniBand", names[layer])
        for number, layer in enumerate(layers)
    )
    examination, _ = examined(text)
    assert (examination.found, len(examination.not_judged)) == ((), 1 if why else 0)
    assert all(part.name == "link_layer" and part.why.startswith(why) for part in examination.not_judged)


def test_what_ibstat_says_when_it_is_asked_for_more_is_no_failure(examined):
    """With -d, as in linux-rdma/rdma-core, pull request 847."""
    said = "ibwarn: [16] umad_init: umad_init\nibwarn: [16] umad_get_ca: opened mlx5_0\n"
    examination, _ = examined(said + IBSTAT.format(state="Active", physical="LinkUp") + said)
    assert (examination.word, examination.found) == ("HEALTHY", ())


def test_a_device_at_which_ibstat_fails_is_found(examined):
    examination, _ = examined(
        IBSTAT.format(state="Active", physical="LinkUp")
        + "ibpanic: [1400444] main: stat of IB device 'mlx5_1' failed\n"
    )
    assert [found.name for found in examination.found] == ["rdma_device_failed"]


@pytest.mark.parametrize(
    "said",
    [
        "ibpanic: [14] main: stat of IB device 'mlx5_0' failed: No such file or directory\n",
        """{\n "ibpanic": "[14] main: stat of IB device 'mlx5_0' failed: No such file or directory"\n}\n""",
    ],
)
def test_ibstat_that_fails_at_the_first_device_is_found(examined, said):
    examination, kind = examined(said)
    assert (kind, [found.name for found in examination.found]) == ("ibstat", ["rdma_device_failed"])


@pytest.mark.parametrize(
    ("word", "code", "severity"),
    [
        ("non-fatal", 12028, "error"),
        ("fatal", 99999, "error"),
        ("non-fatal", 99999, "warning"),
        ("non-fatal", 24001, "note"),
    ],
)
def test_an_error_of_a_switch_has_the_severity_of_its_number(examined, word, code, severity):
    line = FABRIC.format(level="ERROR", text=SWITCH.format(word=word, code=code))
    examination, kind = examined(line * 2)
    (found,) = examination.found
    assert (kind, found.severity, found.where) == (
        "the fabric manager's log",
        severity,
        "NVSwitch 0000:83:00.0 port 34",
    )
    assert "2 times, last Mar 01 2026 19:17:49" in found.what


@pytest.mark.parametrize("ahead", ["Jan 05 14:45:28 host nv-fabricmanager[1120]: ", "nv-fabricmanager[1120]: ", ""])
def test_the_journal_of_the_fabric_manager_is_read(examined, ahead):
    """``journalctl -u nvidia-fabricmanager``: the same sentences without a level. NVIDIA/nvtrust, issue 128."""
    said = f"{ahead}Connected to 1 node.\n{ahead}{SWITCH.format(word='non-fatal', code=12028)}\n"
    examination, kind = examined(said)
    (found,) = examination.found
    assert (kind, found.name, found.where) == (
        "the fabric manager's log",
        "fabric_manager_log",
        "NVSwitch 0000:83:00.0 port 34",
    )
    assert found.what.startswith("reported SXid 12028 (egress non-posted PRIV error")


def test_a_fabric_manager_that_does_not_start_is_found(examined):
    """NVIDIA/gpu-operator, issue 610; data-infra/cube-studio, issue 29."""
    ahead = "Nov 15 14:15:47 n1"
    said = (
        f"{ahead} systemd[1]: Starting NVIDIA fabric manager service...\n"
        f"{ahead} nv-fabricmanager[4177]: request to query NVSwitch device information from NVSwitch driver failed "
        "with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
        f"{ahead} systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE\n"
    )
    examination, kind = examined(said)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.hosts) == (
        "the fabric manager's log",
        "fabric_manager_log",
        "warning",
        ("n1",),
    )
    assert found.what == "the fabric manager did not start, or stopped: right on a host without NVSwitches only"


def test_a_fabric_manager_that_starts_is_in_order(examined):
    ahead = "Jan 05 14:44:41 n1"
    said = (
        f"{ahead} systemd[1]: Starting nvidia-fabricmanager.service - NVIDIA fabric manager service...\n"
        f"{ahead} nv-fabricmanager[1120]: Successfully configured all the available NVSwitches to route GPU NVLink "
        "traffic.\n"
    )
    examination, _ = examined(said)
    assert (examination.word, examination.healthy[0].what) == (
        "HEALTHY",
        "no error in 2 lines of the fabric manager's log",
    )


def test_a_fabric_manager_without_errors_is_in_order(examined):
    examination, _ = examined(FABRIC.format(level="INFO", text="multicast group 0 is freed."))
    assert (examination.word, examination.found) == ("HEALTHY", ())


def test_a_file_of_which_nothing_is_known_is_refused_with_what_is_known(tmp_path):
    (tmp_path / "x").write_text("hello\n")
    with pytest.raises(SuiteError, match="x: nothing in it is known; it begins 'hello'") as raised:
        examine_logs([tmp_path / "x"])
    assert "a kernel's log, NCCL's log" in str(raised.value)
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(SuiteError, match="empty is empty, so there is nothing to judge"):
        examine_logs([tmp_path / "empty"])
    with pytest.raises(SuiteError, match="absent cannot be read: No such file"):
        examine_logs([tmp_path / "absent"])


def test_a_healthy_log_of_nccl_is_in_order(examined):
    examination, kind = examined(WHOLE)
    assert (kind, examination.word, examination.found) == ("NCCL's log", "HEALTHY", ())
    assert examination.healthy[0].what == "5 connections, 3 of them between hosts, 3 with GPUDirect RDMA"
    assert examination.hosts == ("node-a", "node-b")


def said(message, place=""):
    mark = f"{place} NCCL WARN" if place else "NCCL INFO"
    return f"{WHOLE}node-a:700:711 [0] {mark} {message}\n"


@pytest.mark.parametrize(
    ("message", "place", "name", "severity"),
    [
        ("P2P is disabled between NVLINK connected GPUs 0 and 1", "graph/paths.cc:300", "p2p_disabled", "error"),
        ("NET/IB : Got completion with error 12, opcode 1", "n.cc:839", "transfer_given_up", "error"),
        ("NET/IB: Got completion from x with status=IBV_WC_RETRY_EXC_ERR(12)", "n.cc:9", "transfer_given_up", "error"),
        ("NET/IB : Got completion with error 5, opcode 1", "n.cc:839", "transfer_failed", "error"),
        ("Call to ibv_modify_qp failed with error Invalid argument", "misc/ibvwrap.cc:2", "roce_address", "error"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "m.cc:2", "memory_not_registered", "error"),
        ("Call to ibv_reg_mr failed", "misc/ibvwrap.cc:2", "memory_not_registered", "error"),
        ("Call to ibv_modify_qp failed with error Connection timed out", "m.cc:2", "connection_timed_out", "error"),
        ("NET/IB : mlx5_0:1 Got async event : port error", "transport/net_ib.cc:1", "port_error", "error"),
        # Older net_ib.cc names no device; misc/nvmlwrap.cc and CUDACHECK print the library's own words.
        ("NET/IB : Got async event : port error", "p2p_plugin.c:141", "port_error", "error"),
        ("NET/IB : Got async event : port active", "transport/net_ib.cc:94", "nccl_warning", "note"),
        # Since 2.23, in which port errors are among what it calls non-fatal
        ("NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)", "net_ib.cc:253", "port_error", "error"),
        ("NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)", "net_ib.cc:253", "nccl_warning", "note"),
        ("NET/IB : mlx5_3:1 async fatal event: local catastrophic error", "net_ib.cc:1", "port_error", "error"),
        ("NET/IB : x:1 async fatal event on QP (0x7f): local access violation work queue error", "n.cc:1",
         "transfer_failed", "error"),
        ("NET/IB : x Got async event : local access violation work queue error", "n.cc:1", "transfer_failed", "error"),
        ("MNNVL (cliqueSize 72) is available but not working on this system. Check the IMEX configuration "
         "(nvidia-imex-ctl -N).", "init.cc:1", "fabric_not_permitted", "error"),
        ("Detected mixed local Net device counts across ranks (min 7, max 8). Ignoring", "init.cc:1",
         "unequal_cards", "warning"),
        ("Cuda failure 'uncorrectable ECC error encountered'", "enqueue.cc:94", "uncorrectable_ecc", "error"),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", "enqueue.cc:94", "uncorrectable_ecc", "error"),
        ("nvmlDeviceGetHandleByPciBusId(busId) failed: GPU is lost", "misc/nvmlwrap.cc:7", "gpu_lost", "error"),
        ("Cuda failure 700 'an illegal memory access was encountered'", "enqueue.cc:94", "cuda_failure", "warning"),
        # NVIDIA/nccl, issues 1235, 1672, 1232, 795 and 1597; aws/aws-ofi-nccl, issues 24 and 889
        ("Cuda failure 'out of memory'", "include/alloc.h:178", "cuda_failure", "warning"),
        ("Failed to CUDA calloc 6291456 bytes", "include/alloc.h:185", "cuda_failure", "warning"),
        ("Cuda failure 1 'invalid argument'", "transport/nvls.cc:598", "cuda_failure", "warning"),
        ("socketProgress: Connection closed by remote peer n2<42830>", "misc/socket.cc:49", "peer_gone", "warning"),
        ("Net : Call to recv from 192.0.2.7<58355> failed : Broken pipe", "misc/socket.cc:518", "peer_gone", "warning"),
        ("Connect to 192.0.2.7<56821> failed : Connection refused", "include/socket.h:403", "peer_gone", "warning"),
        ("Socket recv failed while polling for opId=0x55a5", "proxy.cc:1143", "peer_gone", "warning"),
        ("[Proxy Service 9] Failed to execute operation Connect from rank 9, retcode 6", "p:1", "peer_gone", "warning"),
        ("NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument", "create:459", "plugin_failed", "warning"),
        ("NET/OFI Request 0x7f completed with error. RC: 113. Error: unknown", "test:99", "plugin_failed", "warning"),
        ("Failed to open libibverbs.so[.1]", "misc/ibvwrap.cc:63", "sockets", "warning"),
        ("Connect to 192.0.2.1<34567> failed : No route to host", "s.cc:4", "host_not_reached", "error"),
        ("Bind to 192.0.2.1<0> failed : Address already in use", "bootstrap.cc:45", "address_in_use", "error"),
        ("[Service thread] Accept failed Success", "proxy.cc:1", "nccl_warning", "note"),
        ("NCCL_ALGO set by environment to Ring.", "", "pinned_setting", "note"),
        ("NCCL_IB_GID_INDEX set by environment to 3.", "", "pinned_setting", "note"),
        ("Error: failed to extend /dev/shm/nccl-2tY to 96 bytes", "shmutils.cc:72", "shared_memory_full", "error"),
        ("Stack size limit (unlimited) is unsafe", "init.cc:9", "stack_size", "warning"),
        ("Cuda failure 800 'operation not permitted'", "transport/p2p.cc:9", "fabric_not_permitted", "error"),
        ("Cuda failure 802 'system not yet initialized'", "init.cc:9", "fabric_state", "error"),
        ("cuMem host allocations do not appear to be working; falling back", "", "host_memory", "warning"),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", "", "network_plugin", "note"),
        ("Rank 3 has 7 local Net devices (max 8)", "", "unequal_cards", "warning"),
        ("Could not find a path for pattern 4, falling back to simple order", "graph/search.cc:9", "no_path", "error"),
        ("NCCL_P2P_DISABLE set by environment to 1.", "", "forbidden_way", "warning"),
        ("NCCL_NET set by environment to socket.", "", "forbidden_way", "warning"),
        ("NCCL_P2P_LEVEL set by environment to 0.", "", "forbidden_way", "warning"),
        ("NCCL_NET_GDR_LEVEL set by environment to 0.", "", "forbidden_way", "warning"),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "", "without_gpu_direct", "warning"),
        ("Channel 02/0 : 3[1] -> 1[1] [receive] via NET/IB/1", "", "without_gpu_direct", "warning"),
        ("Channel 02/0 : 0[0] -> 2[0] [send] via NET/Socket/0", "", "sockets", "error"),
        ("Ring 02 : 0 -> 2 [send] via NET/FastSocket/0", "", "sockets", "error"),
        # A rank's own log may hold the receiving ends alone.
        ("Channel 02/0 : 3[1] -> 1[1] [receive] via NET/Socket/0", "", "sockets", "error"),
        ("Channel 02/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA", "", "network_within_host", "warning"),
        ("Channel 02/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "", "network_within_host", "warning"),
        ("Channel 02 : 0[0] -> 1[1] via SHM/direct/direct", "", "memory_within_host", "note"),
        ("NET/Socket : Using [0]docker0:172.17.0.1<0>", "", "wrong_card", "warning"),
        ("NVLS multicast support is not available on dev 1", "", "nvlink_sharp", "note"),
    ],
)  # fmt: skip
def test_each_fault_that_nccl_tells_of_is_found(examined, message, place, name, severity):
    if "NVLS" in message:
        examination, _ = examined(
            said(message).replace("node-a:700:711 [0] NCCL INFO NVLS multicast support is av", "#")
        )
    else:
        examination, _ = examined(said(message, place))
    assert [(found.name, found.severity) for found in examination.found] == [(name, severity)]
    assert examination.exit_code == (severity != "note")


def test_a_file_at_the_end_of_a_sentence_is_named_without_its_full_stop(examined):
    examination, _ = examined(said("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."))
    (found,) = examination.found
    assert found.what.startswith("no network plugin (libnccl-net.so):")


def test_a_log_without_connections_is_not_judged_by_their_absence(examined):
    examination, _ = examined("n1:7:8 [0] NCCL INFO Using network IB\n")
    assert examination.word == "NOT JUDGED"
    assert examination.not_judged[0].why == "the log lists no connections"


def test_a_gpu_that_is_well_is_in_order_and_an_idle_link_is_no_fault(examined):
    examination, kind = examined(SMI)
    assert (kind, examination.word, examination.found) == ("nvidia-smi -q", "HEALTHY", ())
    names = {healthy.name for healthy in examination.healthy}
    assert names == {"row_remapping", "sram_ecc", "power_limit", "pcie_width", *MODES}


WHERE = "GPU 0 (0000:1b:00.0)"
MODES = ("persistence_mode", "mig_mode", "compute_mode", "ecc_mode")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("Pending                           : No", "Pending                           : Yes", "row_remapping"),
        ("Failure Occurred        : No", "Failure Occurred        : Yes", "row_remapping"),
        ("Parity     : 0", "Parity     : 5", "sram_ecc"),
        ("Current Power Limit               : 700.00 W", "Current Power Limit               : 500.00 W", "power_limit"),
        ("Current                   : 16x", "Current                   : 8x", "pcie_width"),
        ("HW Thermal Slowdown           : Not Active", "HW Thermal Slowdown           : Active", "gpu_slowdown"),
        (": Completed", ": In Progress", "fabric_state"),
        ("Reset Required                    : No", "Reset Required                    : Yes", "gpu_reset_due"),
        (
            "ECC Mode\n        Current                           : En",
            "ECC Mode\n        Current      : Dis",
            "ecc_mode",
        ),
        ("    Remapped Rows", "        Channel Repair Pending : Yes\n    Remapped Rows", "gpu_reset_due"),
        ("    Remapped Rows", "        TPC Repair Pending : Yes\n    Remapped Rows", "gpu_reset_due"),
    ],
)
def test_each_fault_that_nvidia_smi_tells_of_is_found(examined, old, new, name):
    examination, _ = examined(SMI.replace(old, new))
    assert [found.name for found in examination.found] == [name]
    assert examination.exit_code == 1


def of_two_slots(first, second, mode="None"):
    """Two GPUs of generation 5: what GPU and slot can do together, and what the root port can."""
    before, title, part = SMI.partition("GPU 00000000:1B:00.0\n")
    parts = ""
    for address, (most, host) in (("1B", first), ("43", second)):
        said = f"Max                       : {most}\n                Device Max : 5\n                Host Max : {host}"
        gpu = part.replace("Max                       : 5", said).replace(":1B:", f":{address}:")
        parts += title.replace("1B", address) + gpu.replace(
            "    MIG Mode", f"    GPU Virtualization Mode\n        Virtualization Mode : {mode}\n    MIG Mode"
        )
    return before.replace("GPUs                             : 1", "GPUs : 2") + parts


@pytest.mark.parametrize(
    ("second", "mode", "what"),
    [
        ((5, 5), "None", None),
        ((3, 5), "None", "its slot allows PCIe generation 3, and the GPU could do 5"),
        ((5, 3), "None", "the root port above it allows PCIe generation 3, those of other GPUs 5"),
        ((5, "N/A"), "None", None),
        ((5, 3), "Pass-Through", None),
    ],
)
def test_a_slot_that_is_slower_than_its_gpu_or_other_slots_is_found(examined, second, mode, what):
    examination, _ = examined(of_two_slots((5, 5), second, mode))
    assert [(each.name, each.where, each.what) for each in examination.found] == (
        [("pcie_generation", "GPU 1 (0000:43:00.0)", what)] if what else []
    )


def test_the_slots_of_a_virtual_machine_and_root_ports_that_are_all_slower_are_no_fault(examined):
    virtual, _ = examined(of_two_slots((3, "N/A"), (3, "N/A"), "Pass-Through"))
    assert (virtual.found, [part.name for part in virtual.not_judged]) == ((), ["pcie_generation"])
    assert examined(of_two_slots((5, 4), (5, 4)))[0].word == "HEALTHY"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (IBSTAT.format(state="Initializing", physical="LinkUp"), "ibstat"),
        (IBSTATUS.format(state="2: INIT", physical="5: LinkUp"), "ibstatus"),
        (DEVINFO.format(state="PORT_INIT (2)"), "ibv_devinfo"),
    ],
)
def test_ports_whose_text_lost_its_blanks_are_judged(examined, text, kind):
    """As pasted in Azure/azhpc-diagnostics, issue 59."""
    bare = "".join(f"{line.strip()}\n" for line in text.splitlines())
    examination, said = examined(bare)
    assert (said, [found.name for found in examination.found]) == (kind, ["port_state"])
    assert "INIT" in examination.found[0].what


HEALTH = """\
        Health
            Summary                       : {summary}
            Bandwidth                     : {bandwidth}
            Route Recovery in progress    : False
            Route Unhealthy               : {route}
            Access Timeout Recovery       : N/A
            Incorrect Configuration       : None
"""


def test_an_ill_fabric_is_found(examined):
    """Names of the drivers of GB200; NVIDIA/k8s-test-infra has their XML."""
    (found,) = examined(SMI + HEALTH.format(summary="Unhealthy", bandwidth="Full", route="True"))[0].found
    assert (found.name, found.severity, found.where) == ("fabric_state", "error", WHERE)
    assert found.what == "NVLink's fabric is ill: Summary: Unhealthy, Route Unhealthy: True"
    assert examined(SMI + HEALTH.format(summary="Healthy", bandwidth="Full", route="False"))[0].found == ()
    assert examined(SMI + HEALTH.format(summary="N/A", bandwidth="N/A", route="N/A"))[0].found == ()


# Drivers since 565 print a recovery action; since 570 the lines of the reset status are said to be deprecated.
RECOVERY = SMI.replace(
    "Reset Required                    : No\n",
    "Reset Required                    : Requested functionality has been deprecated\n"
    "        Drain and Reset Recommended       : Requested functionality has been deprecated\n"
    "    GPU Recovery Action                   : {}\n",
)


@pytest.mark.parametrize("action", ["Reset", "Reboot", "Drain P2P", "Drain and Reset"])
def test_a_recovery_that_the_driver_asks_for_is_found(examined, action):
    (found,) = examined(RECOVERY.format(action))[0].found
    assert (found.name, found.where, found.what) == ("gpu_reset_due", WHERE, f"the driver asks for recovery: {action}")
    assert found.evidence.endswith(f"GPU Recovery Action: {action}")


@pytest.mark.parametrize("action", ["None", "N/A"])
def test_a_driver_that_asks_for_no_recovery_is_in_order(examined, action):
    assert (examined(RECOVERY.format(action))[0].word, examined(RECOVERY.format(action))[0].found) == ("HEALTHY", ())


def test_what_the_fabric_does_not_say_is_left_out(examined):
    said = SMI.replace(": Completed", ": In Progress").replace(": Success", ": N/A")
    (found,) = examined(said)[0].found
    assert found.what == "NVLink's fabric has not taken it in: in progress"
    assert "None" not in found.evidence


TWO = SMI.replace("Attached GPUs                             : 1", "Attached GPUs                             : 2") + (
    SMI[SMI.index("GPU 0") :].replace("1B:00", "2B:00")
)
LOST = "Unable to determine the device handle for GPU {}0000:19:00.0: Unknown Error\n"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (TWO, []),
        (TWO + LOST.format(""), [("gpu_lost", "GPU 0000:19:00.0")]),
        (LOST.format("").replace("GPU ", "GPU"), [("gpu_lost", "GPU 0000:19:00.0")]),
        (LOST.format("2: ").replace("GPU ", "GPU"), [("gpu_lost", "GPU 0000:19:00.0")]),
        ("Unable to determine the device handle for GPU2: Unknown Error\n", [("gpu_lost", "GPU 2")]),
        (TWO.replace(": 2\n", ": 3\n", 1), [("gpu_lost", "")]),
        (SMI.replace(": 1\n", ": 8\n", 1), []),  # nvidia-smi -q -i 0
        (SMI.replace(": No\n", ": Unknown Error\n").replace(": 0\n", ": Unknown Error\n"), [("gpu_lost", WHERE)]),
        (SMI.replace(": 16x", ": [GPU requires reset]"), [("gpu_reset_due", WHERE)]),
        (SMI.replace("Volatile\n", "Volatile\n            DRAM Uncorrectable            : 7\n"), [("dram_ecc", WHERE)]),
        (
            SMI.replace(
                "    Remapped", "    Retired Pages\n        Pending Page Blacklist            : Yes\n    Remapped"
            ),
            [("page_retirement", WHERE)],
        ),
        (SMI.replace("    Remapped", "        Unrepairable Memory               : No\n    Remapped"), []),
        (
            SMI.replace("    Remapped", "        Unrepairable Memory               : Yes\n    Remapped"),
            [("unrepairable_memory", WHERE)],
        ),
        (
            TWO.replace(
                "    Persistence", "    VBIOS Version                         : 96.00.89.00.01\n    Persistence", 1
            )
            + TWO[TWO.index("GPU 0") :].replace(
                "    Persistence", "    VBIOS Version            : 96\n    Persistence"
            ),
            [("vbios", WHERE)],
        ),
    ],
)
def test_what_a_query_says_of_gpus_that_are_lost_or_unlike(examined, said, found):
    examination, _ = examined(said)
    assert [(each.name, each.where) for each in examination.found] == found


# As nvidia-smi -q lists errors of boards before Turing, in the words of its manual page.
V100 = (
    SMI[: SMI.index("        Volatile")].replace("H100 80GB HBM3", "Tesla V100-SXM2-32GB")
    + """\
        Volatile
            Single Bit
                Device Memory             : 4
                Total                     : 4
            Double Bit
                Device Memory             : {memory}
                Register File             : 0
                L2 Cache                  : {cache}
                Texture Memory            : N/A
                Total                     : {total}
        Aggregate
            Double Bit
                Device Memory             : 12
                Total                     : 15
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : {retired}
        Pending Page Blacklist            : No
    Remapped Rows                         : N/A
"""
)


@pytest.mark.parametrize(
    ("memory", "cache", "retired", "found"),
    [
        (0, 0, 57, []),
        (12, 0, 0, [("dram_ecc", "12 memory errors could not be corrected since the driver was loaded")]),
        (
            0,
            3,
            0,
            [
                (
                    "uncorrectable_ecc",
                    "3 errors of caches or registers could not be corrected since the driver was loaded",
                )
            ],
        ),
        (0, 0, 58, [("page_retirement", "60 pages of its memory are retired, and at most 64 can be")]),
    ],
)
def test_errors_of_boards_that_tell_single_from_double_bits_are_found(examined, memory, cache, retired, found):
    said = V100.format(memory=memory, cache=cache, total=memory + cache, retired=retired)
    examination, _ = examined(said)
    assert [(each.name, each.what) for each in examination.found] == found
    assert all(each.severity == "warning" and each.where == WHERE for each in examination.found)
    if memory:
        assert examination.found[0].evidence == "said.txt:39: Double Bit: 12"


# As driver 610 lists limits, in the words of its nvidia-smi.
CEILING = """\
        GPU Ceiling Power Limit
            Current Power Limit           : {current} W
            Default Power Limit           : 700.00 W
        GPU Base Power
            Current Base Power            : N/A
"""


@pytest.mark.parametrize(("current", "found"), [("700.00", []), ("450.00", [("power_limit", WHERE)])])
def test_a_power_limit_is_judged_where_driver_610_lists_it(examined, current, found):
    limits = (
        "        Current Power Limit               : 700.00 W\n        Default Power Limit               : 700.00 W\n"
    )
    examination, _ = examined(SMI.replace(limits, CEILING.format(current=current)))
    assert [(each.name, each.where) for each in examination.found] == found
    assert "power_limit" in {each.name for each in (*examination.found, *examination.healthy)}


def test_a_gpu_without_a_handle_is_found_however_its_driver_writes_gpu(examined):
    said = (
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\nUnable to determine the device handle for gpu 0000:43:00.0: Unknown Error\n"
    )
    (found,) = examined(said)[0].found
    assert (found.name, found.where) == ("gpu_lost", "GPU 0000:43:00.0")


def test_a_query_that_is_cut_says_so(examined):
    examination, _ = examined(TWO[: TWO.rindex("    Remapped")].replace(": 2\n", ": 4\n", 1))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[-1].why == "the text ends within the part of GPU 1 (0000:2b:00.0)"


def test_its_xml_says_the_same(examined):
    said = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>560.35.03</driver_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:1B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
</clocks_event_reasons></gpu></nvidia_smi_log>
"""
    for printed in (said, f"$ nvidia-smi -q -x\n{said}root@cb17:~#\n"):
        assert {found.name for found in examined(printed)[0].found} == {"row_remapping", "gpu_slowdown"}
    with pytest.raises(SuiteError, match="read as nvidia-smi -q: nvidia-smi -q -x: the XML is not whole"):
        examined(said[:-30], "cut.xml")


def test_a_text_of_which_no_check_says_a_word_is_not_judged_with_a_reason(examined):
    clocks = "==============NVSMI LOG==============\n\nAttached GPUs : 1\nGPU 00000000:00:04.0\n    Clocks\n"
    examination, kind = examined(f"{clocks}        Graphics : 324 MHz\n")
    assert (kind, examination.word) == ("nvidia-smi -q", "NOT JUDGED")
    assert [part.name for part in examination.not_judged] == ["nvidia-smi -q"]


P2P = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA X, pciBusID: 1, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA X, pciBusID: 41, pciDeviceID: 0, pciDomainID:0
Device: 2, NVIDIA X, pciBusID: 81, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CAN Access Peer Device=0
P2P Connectivity Matrix
     D\\D     0     1     2
     0       1     1     0
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 801.28  22.23  22.10
     1  22.32 813.80  22.00
     2  22.32  22.10 813.80
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 801.28  {there}  22.10
     1  22.32 813.80  22.00
     2  22.32  {weak} 813.80
Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 801.28  31.23  31.10
     1  31.32 813.80  31.00
     2  31.32  31.10 813.80
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 801.28  31.23  31.10
     1  31.32 813.80  31.00
     2  31.32  31.10 813.80
"""


@pytest.mark.parametrize(
    ("there", "weak", "found", "word"),
    [
        ("22.30", "22.10", [], "HEALTHY"),
        ("20.01", "22.10", [], "HEALTHY"),
        ("19.90", "22.10", ["slowed_by_peer_access"], "SUSPECT"),
        ("26.30", "22.10", [], "NOT JUDGED"),
        ("22.30", "11.11", [], "NOT JUDGED"),
        ("22.30", "11.00", ["weak_pair"], "SUSPECT"),
    ],
)
def test_pairs_of_gpus_are_held_against_each_other(examined, there, weak, found, word):
    examination, kind = examined(P2P.format(there=there, weak=weak))
    assert (kind, [each.name for each in examination.found]) == ("p2pBandwidthLatencyTest", found)
    assert examination.word == word


def test_two_runs_of_the_bandwidth_test_in_one_text_are_not_one(examined):
    text = P2P.format(there="22.30", weak="11.00") + P2P.format(there="22.30", weak="22.10")
    with pytest.raises(SuiteError, match="the text holds several runs of p2pBandwidthLatencyTest: a file of each"):
        examined(text)


def test_a_matrix_that_was_cut_out_is_judged_alone(examined):
    text = P2P.format(there="22.30", weak="11.00")
    part = text[text.index("Unidirectional P2P=Enabled") :].partition("Bidirectional")[0]
    examination, kind = examined(part)
    assert (kind, [each.name for each in examination.found]) == ("p2pBandwidthLatencyTest", ["weak_pair"])
    (healthy,) = examined(part.replace("11.00", "22.10"))[0].healthy
    assert healthy.what == "6 pairs of GPUs at rates alike for every GPU"


def test_a_matrix_that_is_cut_is_refused(examined):
    with pytest.raises(SuiteError, match="the matrix Bidirectional P2P=Enabled is not whole"):
        examined(P2P.format(there="26.30", weak="22.10")[:-40])


LSPCI = """\
17:00.0 PCI bridge: Intel Corporation Port A (rev 04)
\tBus: primary=17, secondary=18, subordinate=1e, sec-latency=0
\tCapabilities: [148 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid{acs} TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
1a:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x{width}
3a:00.0 PCI bridge: Intel Corporation Port B (rev 04)
\tBus: primary=3a, secondary=3b, subordinate=3c, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
"""


def test_a_gpu_that_answers_only_ones_is_found(examined):
    (found,) = examined(LSPCI.format(acs="-", width=16).replace("(rev a1)", "(rev ff)"))[0].found
    assert (found.name, found.where) == ("gpu_lost", "1a:00.0")
    assert found.evidence.startswith("said.txt:6: 1a:00.0 3D controller: NVIDIA")


@pytest.mark.parametrize(
    ("acs", "width", "found", "word"),
    [
        ("-", 16, [], "HEALTHY"),
        ("+", 16, [("acs", "bridge 17:00.0")], "SUSPECT"),
        ("-", 8, [("pcie_width", "1a:00.0")], "SUSPECT"),
        ("-", 0, [], "HEALTHY"),
    ],
)
def test_bridges_above_gpus_and_their_links_are_judged_and_others_are_not(examined, acs, width, found, word):
    examination, kind = examined(LSPCI.format(acs=acs, width=width))
    assert (kind, [(each.name, each.where) for each in examination.found]) == ("lspci -vvv", found)
    assert examination.word == word
    assert ("pcie_width" in {healthy.name for healthy in examination.healthy}) == (width == 16)


GREPPED = """\
1a:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width {width}
1b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
"""


@pytest.mark.parametrize(("width", "found"), [("x16", []), ("x8 (downgraded)", ["1a:00.0"])])
def test_devices_and_their_links_alone_are_judged(examined, width, found):
    """``lspci -vv | grep -E 'NVIDIA|LnkCap:|LnkSta:'``, as it is asked for in threads; with and without LnkCap."""
    grepped = GREPPED.format(width=width)
    for said in (grepped, "".join(f"{line}\n" for line in grepped.splitlines() if "LnkCap" not in line)):
        examination, kind = examined(said)
        assert (kind, [each.where for each in examination.found]) == ("lspci -vvv", found)
        assert [part.name for part in examination.not_judged] == ["acs"]


CARD = """\
17:00.0 PCI bridge: Intel Corporation Port A (rev 04)
\tBus: primary=17, secondary=18, subordinate=18, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed {slot}GT/s, Width x16, ASPM not supported
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
18:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed {speed}, Width x16
"""


@pytest.mark.parametrize(
    ("slot", "speed", "found"),
    [
        (32, "32GT/s", []),
        (16, "16GT/s (downgraded)", []),
        (32, "16GT/s (downgraded)", ["its PCIe link runs at 16 GT/s, and card and slot could at 32 GT/s"]),
        (16, "2.5GT/s (downgraded)", ["its PCIe link runs at 2.5 GT/s, and card and slot could at 16 GT/s"]),
    ],
)
def test_a_network_card_below_what_it_and_its_slot_can_do_is_found(examined, slot, speed, found):
    examination, _ = examined(CARD.format(slot=slot, speed=speed))
    assert [each.what for each in examination.found] == found
    assert all((each.name, each.severity, each.where) == ("nic_pcie", "error", "18:00.0") for each in examination.found)
    assert ("nic_pcie" in {healthy.name for healthy in examination.healthy}) == (not found)


def test_a_slow_network_card_whose_slot_is_not_listed_is_not_judged(examined):
    said = CARD.format(slot=16, speed="16GT/s (downgraded)")
    examination, _ = examined(said[said.index("18:00.0 ") :])
    assert examination.found == ()
    (unknown,) = [each for each in examination.not_judged if each.name == "nic_pcie"]
    assert unknown.why == "18:00.0 runs at 16 GT/s of its 32 GT/s, and its slot is not in the text"


def test_the_speed_of_a_virtual_function_is_unknown(examined):
    examination, _ = examined(CARD.format(slot=32, speed="unknown").replace("unknown, Width x16", "unknown, Width x0"))
    assert "nic_pcie" not in {each.name for each in (*examination.found, *examination.healthy)}


NVLINK = (
    "GPU 0: NVIDIA {name} (UUID: GPU-1)\n\t Link 0: {first}\nGPU 1: NVIDIA {name} (UUID: GPU-2)\n\t Link 0: {second}\n"
)


@pytest.mark.parametrize(
    ("name", "first", "second", "found", "word"),
    [
        ("H100", "25 GB/s", "25 GB/s", [], "HEALTHY"),
        ("H100", "25 GB/s", "<inactive>", ["GPU 1"], "SUSPECT"),
        ("A100-SXM4-80GB", "<inactive>", "<inactive>", ["GPU 0", "GPU 1"], "SUSPECT"),
        ("H100 PCIe", "<inactive>", "<inactive>", [], "NOT JUDGED"),
    ],
)
def test_links_that_are_inactive_on_one_gpu_are_found(examined, name, first, second, found, word):
    examination, kind = examined(NVLINK.format(name=name, first=first, second=second))
    assert (kind, [each.where for each in examination.found]) == ("nvidia-smi nvlink -s", found)
    assert examination.word == word


def links(*rates, gpu=0, name="NVIDIA A100-SXM4-80GB"):
    said = "".join(f"\t Link {number}: {rate}\n" for number, rate in enumerate(rates))
    return f"GPU {gpu}: {name} (UUID: GPU-{gpu})\n{said}"


A100 = ("25 GB/s",) * 12
ELEVEN = links(*A100[:11], "<inactive>")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (links(*A100), []),
        (links(*A100[:5], "<inactive>", *A100[6:]), [("nvlink_inactive", "has 11 of 12 NVLinks active")]),
        (ELEVEN + ELEVEN.replace("GPU 0", "GPU 1"), [("nvlink_inactive", "has 11 of 12 NVLinks active")] * 2),
        (links(*A100[:11], "12.5 GB/s"), [("nvlink_slow", "1 NVLink (11) at 12.5 GB/s, and should be at 25 GB/s")]),
        (
            links(*["26.562 GB/s"] * 18, name="NVIDIA B200"),
            [("nvlink_slow", "18 NVLinks (0, 1, 2, 3 and 14 more) at 26.562 GB/s, and should be at 50 GB/s")],
        ),
        (
            links(*A100, "12 GB/s", name="New"),
            [("nvlink_slow", "1 NVLink (12) at 12 GB/s, and should be at 25 GB/s")],
        ),
    ],
)
def test_links_are_held_against_what_the_product_has(examined, said, found):
    examination, _ = examined(said)
    assert [(each.name, each.what) for each in examination.found] == found
    assert examination.word == ("SUSPECT" if found else "HEALTHY")


def test_links_of_a_text_that_is_cut_are_not_found_missing(examined):
    examination, _ = examined(links(*A100) + links(*A100[:4], gpu=1))
    assert (examination.word, examination.found) == ("NOT JUDGED", ())
    assert examination.not_judged[0].why == "the text ends at link 3 of GPU 1"


def test_links_of_which_somebody_left_some_out_are_not_found_missing(examined):
    examination, _ = examined(links(*A100) + links(*A100[:4], gpu=1) + "...\n" + links(*A100, gpu=7))
    assert (examination.word, examination.found) == ("NOT JUDGED", ())
    assert examination.not_judged[0].why == "lines are left out behind link 3 of GPU 1"


def test_a_link_that_is_inactive_is_found_beside_lines_that_were_left_out(examined):
    examination, _ = examined(links(*A100[:3], "<inactive>", gpu=1) + "         [...]\n")
    (found,) = examination.found
    assert (found.name, found.where, found.what) == ("nvlink_inactive", "GPU 1", "has inactive NVLinks: 3")


def test_links_of_an_unknown_board_of_which_some_are_inactive_are_not_judged(examined):
    examination, _ = examined(links(*A100, "<inactive>", name="NVIDIA H100 PCIe"))
    assert (examination.word, examination.found) == ("NOT JUDGED", ())


def test_a_list_of_gpus_is_no_list_of_links(examined):
    examination, kind = examined("GPU 0: NVIDIA H100 (UUID: GPU-1)\n")
    assert (kind, examination.word) == ("nvidia-smi", "NOT JUDGED")


def test_files_of_several_hosts_are_held_against_each_other(tmp_path):
    for name, firmware in (("n1", "28.39.1002"), ("n2", "28.39.1002"), ("n3", "28.38.1002")):
        said = IBSTAT.format(state="Active", physical="LinkUp").replace("28.39.1002", firmware)
        (tmp_path / name).write_text(said)
    examination, _ = examine_logs([tmp_path / name for name in ("n1", "n2", "n3")])
    assert [(found.name, found.hosts) for found in examination.found] == [("firmware", ("n3",))]


def test_programs_that_say_the_same_of_one_card_are_not_held_against_each_other(tmp_path):
    """ibstat calls its model MT4129, ibv_devinfo 4129; in one file or in two, they are no two models."""
    ibstat = IBSTAT.format(state="Active", physical="LinkUp").replace("28.39.1002", "28.41.1000")
    devinfo = DEVINFO.format(state="PORT_ACTIVE (4)").replace("fw_ver", "vendor_id:\t\t\t0x02c9\n\tfw_ver")
    (tmp_path / "n1").write_text(f"$ ibstat\n{ibstat}$ ibv_devinfo\n{devinfo}")
    (tmp_path / "n2").write_text(devinfo)
    for paths in ([tmp_path / "n1"], [tmp_path / "n1", tmp_path / "n2"]):
        examination, _ = examine_logs(paths)
        assert (examination.found, examination.hosts) == ((), tuple(path.name for path in paths))


def test_a_line_that_stderr_put_between_the_lines_of_a_gpu_ends_nothing(examined):
    """As ssh and shells do; the part ended there, and a single GPU whose row waits to be replaced was healthy."""
    waits = SMI.replace("Pending                           : No\n", "Pending                           : Yes\n")
    place = waits.index("    Remapped Rows")
    warned = f"{waits[:place]}bash: warning: setlocale: LC_ALL: cannot change locale (de_DE.UTF-8)\n{waits[place:]}"
    (found,) = examined(warned)[0].found
    assert found.name == "row_remapping"


def test_the_part_of_a_gpu_ends_where_another_command_begins(examined):
    """As in nvidia-bug-report.log and in tickets: what follows is indented, too."""
    two = TWO + "____________________________________________\n\n/usr/bin/lspci -v\n\n\n" + "    Remapped Rows\n"
    examination, _ = examined(
        two + "        Pending                           : Yes\n    Kernel driver in use: nvidia\n"
    )
    assert (examination.found, examination.not_judged) == ((), ())


def test_the_verb_prints_what_was_found_and_refuses_what_has_no_effect(tmp_path):
    (tmp_path / "dmesg.txt").write_text(XID)
    done = CliRunner().invoke(main, ["doctor", "--log", str(tmp_path / "dmesg.txt")])
    assert done.exit_code == 1
    assert "reported Xid 119" in done.output
    for words in (
        ["--log", "dmesg.txt", "--hosts", "n1"],
        ["--log"],
        ["--quick", "dmesg.txt"],
        ["--quick", "--log", "x"],
    ):
        assert CliRunner().invoke(main, ["doctor", *words]).exit_code != 0


def test_a_log_may_come_through_a_pipe():
    command = [sys.executable, "-m", "clusterbench", "doctor", "--log", "-"]
    done = subprocess.run(command, input=f"{XID}\n\n", capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "reported Xid 119" in done.stdout
    assert "no SXid in 1 line of the kernel's log" in " ".join(done.stdout.split())


def test_what_one_reader_cannot_read_hides_nothing_of_the_others(examined):
    """A training log that quotes a word of NCCL's, a matrix that is cut: the rest of the file is judged.

    Source: utkuozdemir/nvidia_gpu_exporter, ``internal/captures``: files of several commands.
    """
    examination, kind = examined(f"{XID}grep NCCL INFO log.txt\n")
    assert (kind, [found.name for found in examination.found]) == ("a kernel's log", ["xid"])
    (unknown,) = examination.not_judged
    assert (unknown.name, unknown.takes) == ("NCCL's log", "the whole output, in a file of its own")
    assert unknown.why.startswith("no line of this is from NCCL's log")


def test_a_gpu_that_one_file_lists_again_is_one_gpu_of_one_host(examined):
    """``nvidia-smi -q`` twice, idle and under load, and the table: as in utkuozdemir/nvidia_gpu_exporter's captures."""
    idle = SMI.replace("Current                           : Disabled", "Current                           : Enabled")
    idle = idle.replace("    MIG Mode", "    GPU UUID                              : GPU-1\n    MIG Mode")
    busy = idle.replace("SW Thermal Slowdown               : Not Active", "SW Thermal Slowdown               : Active")
    table = TABLE[: TABLE.index("|   1")].replace("      3 |", "      0 |").replace("E. Process", "  Default")
    examination, kind = examined(idle + busy + idle + table.replace("00000000:19", "00000000:1B"))
    assert (kind, examination.hosts) == ("nvidia-smi -q and nvidia-smi", ("said.txt",))
    assert [(found.name, found.where) for found in examination.found] == [
        ("mig_mode", "GPU 0 (0000:1b:00.0)"),
        ("gpu_slowdown", WHERE),
    ]
    assert any(healthy.what == "1 NVIDIA GPUs may draw their default power" for healthy in examination.healthy)


def test_a_file_may_hold_two_kinds(examined):
    examination, kind = examined(WHOLE + XID)
    assert kind == "a kernel's log and NCCL's log"
    assert [found.name for found in examination.found] == ["xid"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TABLE,
            {
                ("gpu_lost", "error"),
                ("uncorrectable_ecc", "warning"),
                ("compute_mode", "warning"),
                ("mig_mode", "error"),
            },
        ),
        ("Failed to initialize NVML: Driver/library version mismatch\n", {("driver_mismatch", "error")}),
        ("No devices were found\n", {("gpu_lost", "error")}),
        # Azure/azhpc-diagnostics, Linux/test/samples/nvidia-smi-inforom.out
        (
            TABLE[: TABLE.index("|   1")]
            .replace("      3 |", "      0 |")
            .replace("E. Process", "  Default")
            .replace("Enabled*", "Disabled")
            + "WARNING: infoROM is corrupted at gpu 0000:19:00.0\n",
            {("gpu_inforom", "error")},
        ),
        # NVIDIA's container toolkit, troubleshooting: "Containers losing access to GPUs"
        ("Failed to initialize NVML: Unknown Error\n", {("gpu_lost", "error")}),
        (TABLE[: TABLE.index("|=")], set()),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n", set()),
    ],
)
def test_a_table_of_nvidia_smi_is_judged(examined, text, expected):
    examination, kind = examined(text)
    assert kind == "nvidia-smi"
    assert {(found.name, found.severity) for found in examination.found} == expected
    assert examination.word == ("SUSPECT" if expected else "NOT JUDGED")


IDLE = (
    TABLE[: TABLE.index("|   1")]
    .replace("      3 |", "      0 |")
    .replace("E. Process", "  Default")
    .replace("Enabled*", "Disabled")
)


def test_a_gpu_that_is_busy_with_the_memory_of_an_idle_one_spins(examined):
    """A context of CUDA alone takes some hundred MiB; such a table was 'HEALTHY: in order: 4 checks'."""
    examination, _ = examined(IDLE.replace("      0% ", "    100% "))
    (found,) = examination.found
    assert (found.name, found.severity) == ("gpu_spins", "warning")
    assert found.what == "is busy though no process computes on it"
    assert examined(IDLE.replace("      0% ", "    100% ").replace("  1MiB", "612MiB"))[0].found == ()
    # without persistence mode nvidia-smi itself starts the driver, and is what is busy
    assert examined(IDLE.replace("      0% ", "    100% ").replace(" On ", " Off"))[0].word != "SUSPECT"


def test_memory_that_is_in_use_in_a_table_is_a_note_with_its_process(examined):
    held = IDLE.replace("     1MiB", " 41512MiB")
    process = "|    0   N/A  N/A           12345      C   python                                41500MiB |\n"
    (found,) = examined(held + process)[0].found
    assert (found.name, found.severity, found.where) == ("gpu_memory_held", "note", "GPU 0")
    assert found.what == (
        "memory was in use when this was printed, 40.5 GiB, by python (pid 12345): it should be free before a run of "
        "your own"
    )
    assert "by no process that is listed" in examined(held)[0].found[0].what


def test_gpus_that_differ_in_their_domain_alone_have_lines_of_their_own(examined):
    rows = [f"|   {gpu}  Tesla V100-PCIE-16GB  Off  | 0000{domain}:00:00.0 Off |                  Off |\n"
            "| N/A   30C    P0    37W / 250W |     11MiB / 16160MiB |      0%      Default |\n"
            for gpu, domain in enumerate(("B57E", "EE58"))]  # fmt: skip
    examination, _ = examined(TABLE[: TABLE.index("|   0")] + "".join(rows))
    lines = {found.where: found.evidence for found in examination.found if found.name == "persistence_mode"}
    begin = TABLE[: TABLE.index("|   0")].count("\n") + 1
    assert [*lines] == ["GPU 0 (b57e:00:00.0)", "GPU 1 (ee58:00:00.0)"]
    for index, evidence in enumerate(lines.values()):
        assert evidence.startswith(f"said.txt:{begin + 2 * index}, in the words of NVML persistence mode")


def test_evidence_is_of_the_file_that_says_it_and_never_of_one_in_order(tmp_path):
    """Lines alike stand in both: the name of a port, of a GPU, of a link."""
    said = {
        "ibstat": (
            IBSTAT.format(state="Active", physical="LinkUp"),
            IBSTAT.format(state="Down", physical="Polling"),
            ":1, in the words of /sys/class/infiniband/mlx5_0/ports/1/state: 1: DOWN; phys_state: 2: Polling",
        ),
        "nvidia-smi -q": (
            SMI,
            SMI.replace("Current                   : 16x", "Current                   : 8x"),
            ":7, in the words of NVML PCIe link width: x8; most x16",
        ),
        "nvidia-smi nvlink -s": (
            NVLINK.format(name="H100", first="26.562 GB/s", second="26.562 GB/s"),
            NVLINK.format(name="H100", first="26.562 GB/s", second="13.281 GB/s"),
            ":4: Link 0: 13.281 GB/s",
        ),
    }
    for kind, (well, ill, evidence) in said.items():
        (tmp_path / "well.txt").write_text(well)
        (tmp_path / "ill.txt").write_text(ill)
        for files in (["well.txt", "ill.txt"], ["ill.txt", "well.txt"]):
            examination, _ = examine_logs([tmp_path / file for file in files])
            found = next(each for each in examination.found if each.severity == "error")
            assert (kind, found.hosts, found.evidence) == (kind, ("ill.txt",), f"ill.txt{evidence}")


@pytest.mark.parametrize(
    "end",
    [
        "\t\tRat",
        "\t\tRate: 40",
        "\tPort 1:\n\t\tState: Act",
        "\tCA type: MT41",
        "\tFirmware version: 28.3",
        "\t\tLink layer: Infi",
    ],
)
def test_a_list_of_ports_that_is_cut_is_not_judged_there_and_found_in_nothing(tmp_path, end):
    """The last port has half a word, the last device no port: no rate of 40 beside 400, no device that is missing."""
    port = IBSTAT.format(state="Active", physical="LinkUp")
    listed = [port.replace("mlx5_0", f"mlx5_{number}") for number in range(4)]
    cut = "".join(listed[:3]) + listed[3][: listed[3].index(end) + len(end)]
    (tmp_path / "cut.txt").write_text(cut)
    (tmp_path / "whole.txt").write_text("".join((*listed, port.replace("mlx5_0", "mlx5_4"))))
    examination, _ = examine_logs([tmp_path / "cut.txt", tmp_path / "whole.txt"])
    assert examination.found == ()
    place = "mlx5_3" if end[:2] != "\t\t" and "Port" not in end else "mlx5_3 port 1"
    parts = [(part.hosts, part.why) for part in examination.not_judged if part.name == "ibstat"]
    assert parts == [(("cut.txt",), f"the text ends within {place}")]


def test_a_list_of_ports_without_a_line_break_at_its_end_is_whole(examined):
    examination, _ = examined(IBSTAT.format(state="Active", physical="LinkUp").rstrip())
    assert not [part for part in examination.not_judged if part.name == "ibstat"]


def test_sockets_are_found_also_in_a_log_that_has_receiving_ends_alone(examined):
    said = [
        line
        for line in WHOLE.replace("NET/IB/", "NET/Socket/").replace("/GDRDMA", "").splitlines()
        if "[send]" not in line
    ]
    examination, _ = examined("".join(f"{line}\n" for line in said))
    assert ("sockets", "error") in {(found.name, found.severity) for found in examination.found}
    assert "ways" not in {healthy.name for healthy in examination.healthy}
