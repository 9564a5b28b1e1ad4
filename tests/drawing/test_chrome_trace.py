from __future__ import annotations

import json

from clusterbench.drawing.chrome_trace import ChromeTrace, Process, Ran, Thread
from tests.drawing.chrome import threads_of


def test_events_are_in_order_of_time_whatever_thread_they_are_of() -> None:
    first = Thread("compute", "compute", [Ran("mm", 1500, 500), Ran("add", 9000, 1)])
    second = Thread("exposed communication tp", "exposed", [Ran("tp all_reduce", 2000, 7000, {"spans": 3})])
    trace = ChromeTrace([Process("rank 0", [first], "busy"), Process("rank 1", [second])], {"case": "é"})
    text = "".join(trace.pieces())
    ran = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in ran] == [
        ("mm", 1.5, 0.5),
        ("tp all_reduce", 2.0, 7.0),
        ("add", 9.0, 0.001),
    ]
    assert ran[1]["args"] == {"spans": 3}
    assert threads_of(text).keys() == {"rank 0", "rank 1"}
    assert json.loads(text)["otherData"] == {"made_by": "clusterbench", "case": "é"}
    assert trace.num_events == 3


def test_a_trace_of_nothing_is_json_too() -> None:
    assert json.loads("".join(ChromeTrace([]).pieces()))["traceEvents"] == []
