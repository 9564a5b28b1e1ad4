"""Other healthy hosts, one file a host: ``change(machine)`` makes it of the usual one."""
