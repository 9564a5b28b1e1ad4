def plant(machine):
    machine.files["/etc/nccl.conf"] = "# of the cluster\nNCCL_SOCKET_IFNAME=eno1\nNCCL_IB_TIMEOUT=22\n"
