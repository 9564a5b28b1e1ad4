"""Real output of public origin, which is no part of the project: where it is, and what is known of each."""

from __future__ import annotations

from pathlib import Path

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

HEALTHY = (
    "nvidia_smi_topo_m_a100_nv12_nonic.txt",
    "nvidia_smi_topo_m_a800_8gpu_4nic.txt",
    "nvidia_smi_topo_m_azure_ndmv4_a100.txt",
    "nvidia_smi_topo_m_azure_ndv4_a100.txt",
    "nvidia_smi_topo_m_dgx1_v100.txt",
    "nvidia_smi_topo_m_h100_nv18_nonic.txt",
    "nvidia_smi_topo_p2p_r_h100.txt",
    "lspci_nn_a100.txt",
    "lspci_t_azure_ndmv4_a100.txt",
    "lspci_t_azure_ndv4_a100.txt",
    "lspci_vvv_acsctl.txt",
    "dmidecode_v100.txt",
    "ib_device_info_azure_ndmv4_a100.json",
    "ib_device_info_azure_ndv4_a100.json",
    "ib_device_info_v100.json",
    "ibnetdiscover_superbench.txt",
    "gpu_copy_bw_superbench.txt",
    "nvbandwidth_readme_d2d_write.txt",
    "ib_device_status_azure_ndmv4_a100.json",
    "ib_device_status_v100.json",
    "ibstat_a100_all_active.txt",
    "ibstat_h100_all_active_1.txt",
    "ibstat_h100_all_active_2.txt",
    "ibstat_some_down_0.txt",  # the three that are down are Disabled: switched off, beside eight that train
    "ibstatus_a100_all_active.txt",
    "lspci_vvv_full_v100.txt",
    "nccl_info_a100_16rank_efa.txt",
    "numactl_hardware.txt",
    "nvidia_smi_nvlink_status_a100.txt",
    "nvidia_smi_nvlink_status_azure_good.txt",
    "nvidia_smi_q_535_154_05_out_0_valid.txt",
    "nvidia_smi_q_535_154_05_out_1_valid.txt",
    "nvidia_smi_q_535_rtx4090.txt",
    "nvidia_smi_q_560.txt",
    "nvidia_smi_q_x_rtx_3080_v13.xml",
    "nvidia_smi_q_x_rtx_4000_sff_ada_v13.xml",
    "nvidia_smi_table_4xrtx6000ada.txt",
    "nvidia_smi_table_550_90.txt",
    "p2pBandwidthLatencyTest_2gpu.txt",
    "p2pBandwidthLatencyTest_4xrtx6000ada.txt",
)
FAULTY = {
    "dmesg_xid119.txt": ("xid", "Xid (PCI:0000:9b:00): 119"),
    "fabricmanager_2.txt": ("fabric_manager_log", "detected NVSwitch non-fatal error 12028"),
    "fabricmanager_gpud.txt": ("fabric_manager_log", "detected NVSwitch non-fatal error 12028"),
    "ib_device_status_azure_ndv4_a100.json": ("rdma_device_failed", "stat of IB device 'mlx5_an0' failed"),
    "ibstat_a100_ibpanic_failed.txt": ("rdma_device_failed", "stat of IB device 'mlx5_8' failed"),
    "ibv_devinfo_connectx_ethernet.txt": ("port_state", "PORT_DOWN (1)"),
    "nccl_info_bigscience_all_reduce_bench-32gb-n4.txt": ("without_gpu_direct", "[receive] via NET/IB/1"),
    "nccl_info_bigscience_all_reduce_bench-a100-n4.txt": ("without_gpu_direct", "[receive] via NET/IB/"),
    "nccl_info_fragment_shm_socket_cumem.txt": ("sockets", "[send] via NET/Socket/0"),
    "nvidia_smi_nvlink_status_azure_bad.txt": ("nvlink_inactive", "all links are inactive"),
    "nvidia_smi_q_525_h800.txt": ("ecc_mode", "Current                           : Disabled"),
    "nvidia_smi_q_535_161_08_out_0_valid.txt": ("gpu_slowdown", "HW Power Brake Slowdown       : Active"),
    "nvidia_smi_q_535_183_01_out_0_valid.txt": ("gpu_slowdown", "SW Thermal Slowdown               : Active"),
    "nvidia_smi_q_535_a10.txt": ("row_remapping", "Pending                           : Yes"),
    "nvidia_smi_q_x_a100_sxm4_v12.xml": ("mig_mode", "<current_mig>Enabled</current_mig>"),
    "nvidia_smi_q_x_a10g.xml": ("pcie_width", "<current_link_width>8x</current_link_width>"),
    "nvidia_smi_q_x_tesla_t4.xml": ("pcie_width", "<current_link_width>8x</current_link_width>"),
}
"""The finding, and a part of the line that shows it."""

NOT_WHOLE = {
    "nvidia_smi_topo_m_ansi_3090_2xv100_nv6.txt": "NVLink joins two of three GPUs, which are of several kinds",
    "nvidia_smi_topo_m_pcie_2gpu_2nic.txt": "no NVLink",
    "nvidia_smi_topo_m_v100.txt": "no NVLink",
    "nccl_tests_2_17_a100_2node_abridged.txt": "results are right; a rate has no peer",
    "nccl_tests_alltoall_superbench.txt": "results are right; a rate has no peer",
    "gdrcopy_apiperf.txt": "the driver works; a rate has no peer",
    "gdrcopy_copybw_numactl.txt": "the driver works; a rate has no peer",
    "gdrcopy_copybw_v100.txt": "the driver works; a rate has no peer",
    "gdrcopy_copylat_v100.txt": "the driver works; a rate has no peer",
    "gdrcopy_pplat.txt": "the driver works; a rate has no peer",
    "perftest_ib_write_bw_loopback_8M.txt": "no transfer failed; a rate has no peer",
    "perftest_ib_write_bw_loopback_all_sizes.txt": "no transfer failed; a rate has no peer",
    "perftest_ib_write_bw_out_json.json": "no unit and no peer",
    "lspci_t_v100.txt": "GPUs without NVSwitches: nothing says how many there should be",
    "lspci_tv.txt": "GPUs without NVSwitches: nothing says how many there should be",
    "dmidecode_azure_ndmv4_a100.txt": "a virtual machine's memory modules are invented",
    "dmidecode_azure_ndv4_a100.txt": "a virtual machine's memory modules are invented",
    "nvbandwidth_superbench.txt": "a matrix of three GPUs, and a list of one",
    **{
        f"nccl_tests_{name}_superbench.txt": "results are right; a rate has no peer"
        for name in ("allgather", "allreduce", "broadcast", "reduce", "reducescatter")
    },
    "lspci_vvv_full_azure_ndmv4_a100.txt": "a virtual machine: its functions say x0, and no bridge shows ACSCtl",
    "lspci_vvv_full_azure_ndv4_a100.txt": "a virtual machine: its functions say x0, and no bridge shows ACSCtl",
    "lspci_vvv_gpu_rtx6000ada.txt": "a card without the bridges above it",
    "lspci_vvv_nic_connectx.txt": "a card without the bridges above it",
    "nvidia_smi_nvlink_status_h800.txt": "its author left out GPUs and wrote three dots",
    "deepep_internode_2node_with_nccl_info.txt": "the host of some ranks is not in the log",
}
"""Read, and no more can be said of it than this."""

UNREAD = ("ibstat_superbench.txt",)
"""Of no host's health, or not read by the doctor: each is refused, with what can be read."""
