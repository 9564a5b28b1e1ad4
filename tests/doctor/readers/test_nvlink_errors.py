from __future__ import annotations

import json

import pytest

# stas00/ml-engineering, compute/accelerator/nvidia/debug.md: nvidia-smi nvlink -e on an H100.
SMI = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)
\t Link 0: Replay Errors: {replays}
\t Link 0: Recovery Errors: {recoveries}
\t Link 0: CRC Errors: 0

\t Link 1: Replay Errors: 0
\t Link 1: Recovery Errors: 0
\t Link 1: CRC Errors: 0
"""
RETRAINED = SMI.format(replays=7, recoveries=2)
# facebookresearch/gcm, gcm/health_checks/checks/check_dcgmi.py: dcgmi nvlink -e -g 0.
DCGM = """\
+-----------------------------+------------------------------------------------+
| NVLINK Error Counts                                                          |
| GPU 3                                                                        |
+=============================+================================================+
| Link 0                      |                                                |
| -> CRC FLIT Error           | {flits}                                              |
| -> CRC Data Error           | 0                                              |
| -> Replay Error             | 0                                              |
| -> Recovery Error           | 0                                              |
"""


def test_a_link_that_trained_again_is_found(examined):
    examination, kind = examined(RETRAINED)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == (
        "nvidia-smi nvlink -e",
        "nvlink_errors",
        "warning",
        "GPU 0",
    )
    assert found.what == "links had to train again: link 0: 2 Recovery Errors"
    assert found.evidence == "said.txt:3: Link 0: Recovery Errors: 2"


@pytest.mark.parametrize(("replays", "severity"), [(7, "note"), (700, "warning")])
def test_few_packets_that_were_sent_again_are_a_note(examined, replays, severity):
    (found,) = examined(SMI.format(replays=replays, recoveries=0))[0].found
    assert (found.severity, found.what) == (
        severity,
        f"packets were damaged or sent again: link 0: {replays} Replay Errors",
    )


def test_links_without_errors_are_in_order(examined):
    examination, _ = examined(SMI.format(replays=0, recoveries=0))
    assert (examination.found, examination.word) == ((), "HEALTHY")
    assert examination.healthy[0].what == "2 NVLinks of 1 GPU without errors"


def test_dcgms_table_and_json_say_the_same(examined):
    (found,) = examined(DCGM.format(flits=120))[0].found
    assert (found.where, found.what) == ("GPU 3", "packets were damaged or sent again: link 0: 120 CRC FLIT Error")
    counts = {"CRC FLIT Error": {"value": "120"}, "Replay Error": {"value": "Not Supported"}}
    report = {"body": {"Link 0": {"children": counts}}, "header": ["NVLINK Error Counts", "GPU 3"]}
    (same,) = examined(json.dumps(report, indent=1) + "\n")[0].found
    assert (same.where, same.what) == (found.where, found.what)


def test_what_is_cut_is_not_judged(examined):
    examination, _ = examined(DCGM[: DCGM.index("| Link 0")])
    assert (examination.word, examination.healthy) == ("NOT JUDGED", ())
    examination, _ = examined('{"body": {"Link 0": {}}, "header": ["NVLINK Error Counts", "GPU 0"]}')
    assert examination.not_judged[0].why.startswith("dcgmi nvlink -e printed JSON that cannot be read: ")
