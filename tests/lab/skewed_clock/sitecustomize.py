"""Shifts the wall clock of a Python process, as on a host that was never told the time.

Imported by every Python of a lab in which a host is skewed. Linux namespaces shift only the monotonic clocks, so this
shifts what Python shows: ``time.time``, ``time.time_ns`` and ``datetime.datetime.now``, ``utcnow`` and ``today``.
``$LAB_CLOCK_SKEWS`` names a JSON file, {host name: seconds}: launchers hand variables on from host to host, so the
variable must be the same everywhere.
"""

import json
import os
import socket


def _shift_clocks(skew_s: float) -> None:
    import datetime
    import time

    true_time, true_time_ns, true_datetime = time.time, time.time_ns, datetime.datetime
    time.time = lambda: true_time() + skew_s
    time.time_ns = lambda: true_time_ns() + round(skew_s * 1e9)

    class AnyDatetime(type):
        def __instancecheck__(cls, value):
            return isinstance(value, true_datetime)

        def __subclasscheck__(cls, kind):
            return issubclass(kind, true_datetime)

    class ShiftedDatetime(true_datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz=None):
            return true_datetime.now(tz) + datetime.timedelta(seconds=skew_s)

        @classmethod
        def utcnow(cls):
            return true_datetime.utcnow() + datetime.timedelta(seconds=skew_s)

        @classmethod
        def today(cls):
            return cls.now()

    ShiftedDatetime.__name__ = ShiftedDatetime.__qualname__ = "datetime"
    datetime.datetime = ShiftedDatetime


if os.environ.get("LAB_CLOCK_SKEWS"):
    with open(os.environ["LAB_CLOCK_SKEWS"]) as _file:
        _skew_s = json.load(_file).get(socket.gethostname(), 0)
    if _skew_s:
        _shift_clocks(_skew_s)
