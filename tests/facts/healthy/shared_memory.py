from clusterbench.facts.shared_memory import SharedMemory


def plant(machine):
    machine.give(SharedMemory(size_bytes=1024 * 2**30, free_bytes=1023 * 2**30))
