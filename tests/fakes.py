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
