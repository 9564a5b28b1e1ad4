def plant(machine):
    machine.files["/proc/sys/net/ipv4/ip_local_port_range"] = "32768\t60999\n"
    machine.files["/proc/net/sockstat"] = (
        "sockets: used 900\nTCP: inuse 40 orphan 0 tw 12 alloc 60 mem 9\nUDP: inuse 8\n"
    )
