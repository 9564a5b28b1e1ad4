from __future__ import annotations

import json

# The tree by NVIDIA/DCGM, dcgmi/tests/HealthTests.cpp and dcgmi/Health.cpp.
FAILURE = """\
+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Failure                                                  |
| GPU                       |                                                          |
| -> 0                      | Warning                                                  |
|    -> Errors              |                                                          |
|       -> PCIe system      | Warning                                                  |
|                           | Detected more than 8 PCIe replays per minute for GPU 0   |
|                           | : 13 Reconnect PCIe card.                                |
| -> 1                      | Failure                                                  |
|    -> Errors              |                                                          |
|       -> Memory system    | Failure                                                  |
|                           | A DBE has pending page retirements on GPU 1.             |
+---------------------------+----------------------------------------------------------+
"""
# microsoft/VirtualClient, Examples/DCGMI/DCGMIHealthCheckResults.json.
HEALTHY = {"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}


def test_each_incident_is_found_with_its_gpu(examined):
    examination, kind = examined(FAILURE)
    assert kind == "dcgmi health -c"
    assert [(found.where, found.severity, found.what) for found in examination.found] == [
        (
            "GPU 1",
            "error",
            "DCGM's watch of its Memory system reports failure: A DBE has pending page retirements on GPU 1.",
        ),
        (
            "GPU 0",
            "warning",
            "DCGM's watch of its PCIe system reports warning: Detected more than 8 PCIe replays per minute for GPU 0 "
            ": 13 Reconnect PCIe card.",
        ),
    ]
    assert examination.found[0].evidence.startswith("said.txt:13: |       -> Memory system")


def test_no_incident_does_not_say_what_was_watched(examined):
    examination, _ = examined(json.dumps(HEALTHY, indent=1) + "\n")
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.healthy[0].what == "no incident in what DCGM watched"
    assert examination.not_judged[0].why == "it does not say which systems were watched, and since when"


def test_json_says_the_same_as_the_tree(examined):
    system = {"Memory system": {"value": "Failure", "overflow": ["A DBE is pending."]}}
    gpu = {"1": {"value": "Failure", "children": {"Errors": {"children": system}}}}
    body = {"Overall Health": {"value": "Failure"}, "GPU": {"children": gpu}}
    (found,) = examined(json.dumps({**HEALTHY, "body": body}, indent=1) + "\n")[0].found
    assert (found.where, found.severity) == ("GPU 1", "error")
    assert found.what.endswith("reports failure: A DBE is pending.")


def test_a_report_that_is_cut_is_not_called_healthy(examined):
    examination, _ = examined(FAILURE[: FAILURE.index("| GPU  ")])
    assert (examination.found, examination.healthy, examination.word) == ((), (), "NOT JUDGED")
    assert examination.not_judged[0].why == "overall health is Failure, and the text ends before the incident"
