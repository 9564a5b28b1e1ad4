from tests.facts.healthy.processor import FOLDER
from tests.facts.machine import planted


def throttled(cpu, times, lowered_ms):
    """A CPU whose core was as often too hot; its package never."""
    return planted(
        f"{FOLDER}/cpu{cpu}/thermal_throttle",
        {
            "core_throttle_count": times,
            "core_throttle_total_time_ms": lowered_ms,
            "package_throttle_count": 0,
            "package_throttle_total_time_ms": 0,
        },
    )


def plant(machine):
    for cpu in range(4):
        machine.files |= planted(f"{FOLDER}/cpu{cpu}/topology", {"physical_package_id": cpu // 2})
        machine.files |= throttled(cpu, 0, 0)
