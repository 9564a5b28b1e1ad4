"""Stand-ins that lie on command."""

from collections import deque
from itertools import pairwise


class FakeClock:
    """Gives the marks it was told to, and notes what was asked of it and when."""

    def __init__(self, *marks):
        self.marks = deque(marks)
        self.calls = []

    def mark(self):
        self.calls.append("mark")
        return self.marks.popleft()

    def settle(self):
        self.calls.append("settle")

    def seconds(self, marks):
        self.calls.append("seconds")
        return [stop - start for start, stop in pairwise(marks)]


class Device:
    """A device and its clock: an iteration that begins at ``now_s`` takes ``each_s(now_s)`` seconds."""

    def __init__(self, each_s):
        self.each_s = each_s
        self.now_s = 0.0
        self.calls = 0

    def run(self):
        self.calls += 1
        self.now_s += self.each_s(self.now_s)

    def mark(self):
        return self.now_s

    def settle(self):
        pass

    def seconds(self, marks):
        return [stop - start for start, stop in pairwise(marks)]
