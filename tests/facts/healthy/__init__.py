"""A healthy host, one file a collector: ``plant(machine)`` adds what that collector reads."""
