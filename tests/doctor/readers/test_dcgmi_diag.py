from __future__ import annotations

import json

import pytest

HEAD = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.3.3                                          |
| Driver Version Detected   | 535.104.12                                     |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| Persistence Mode          | {persistence}                                           |
"""
END = "+---------------------------+------------------------------------------------+\n"
# The rows of a failure: stas00/ml-engineering, compute/accelerator/nvidia/debug.md.
FAILED = f"""\
{HEAD.format(persistence="Pass")}\
+-----  Integration  -------+------------------------------------------------+
| PCIe                      | Pass - All                                     |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | Pass - GPUs: 1, 2, 3, 4, 5, 6, 7               |
|                           | Fail - GPU: 0                                  |
| Warning                   | GPU 0 Thermal violations totaling 13.3 second  |
|                           | s started at 9.7 seconds into the test for GP  |
|                           | U 0 Verify that the cooling on this machine i  |
|                           | s functional.                                  |
{END}"""
# DCGM 4.4.2: NVIDIA/DCGM, an issue of January 2026; the failing row by dcgmi/Diag.cpp of that version.
NEW = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 4.4.2                                          |
| GPU Device IDs Detected   | 2237                                           |
|-----  Deployment  --------+------------------------------------------------|
| software                  | Pass                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: Pass                                     |
+-----  Hardware  ----------+------------------------------------------------+
| memory                    | {memory}                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: {memory}                                     |
{message}\
+---------------------------+------------------------------------------------+
"""
GPU = {"entity_group": "GPU", "entity_id": 0}
MESSAGE = """\
| Warning: GPU1             | 1 uncorrectable memory errors occurred on GPU  |
|                           |  1.                                            |
"""


def of_json(title, *tests):
    return json.dumps({title: {"test_categories": [{"category": "Hardware", "tests": list(tests)}]}}, indent=1) + "\n"


def test_a_gpu_that_failed_is_found_with_the_words_of_the_message(examined):
    examination, kind = examined(FAILED)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("dcgmi diag", "dcgm_diag", "error", "GPU 0")
    assert found.what == (
        "DCGM's test 'GPU Memory' failed: GPU 0 Thermal violations totaling 13.3 seconds started at 9.7 seconds into "
        "the test for GPU 0 Verify that the cooling on this machine is functional."
    )
    assert found.evidence.startswith("said.txt:15: |                           | Fail - GPU: 0")
    assert examination.healthy[0].what == "3 tests of DCGM passed: Denylist, Persistence Mode, PCIe"


def test_all_that_pass_are_in_order(examined):
    text = FAILED[: FAILED.index("| GPU Memory")] + f"| GPU Memory                | Pass - All    |\n{END}"
    examination, _ = examined(text)
    assert examination.word == "HEALTHY"
    assert examination.healthy[0].what == "4 tests of DCGM passed: Denylist, Persistence Mode, PCIe, GPU Memory"


def test_a_setting_that_fails_is_a_warning_and_level_1_does_not_judge_hardware(examined):
    examination, _ = examined(HEAD.format(persistence="Fail") + END)
    assert [(found.severity, found.what) for found in examination.found] == [
        ("warning", "DCGM's test 'Persistence Mode' failed, without a word why")
    ]
    assert examination.not_judged[0].why == "only the software was looked at (level 1), and no GPU worked"


def test_a_message_without_a_test_is_found(examined):
    # stas00/ml-engineering, compute/accelerator/nvidia/debug.md: a host whose GPU waits for its rows to be remapped.
    text = (
        "| Diagnostic                | Result                                         |\n"
        "+===========================+================================================+\n"
        "|-----  Deployment  --------+------------------------------------------------|\n"
        "| Error                     | GPU 3 has uncorrectable memory errors and row  |\n"
        "|                           |  remappings are pending                        |\n"
    )
    (found,) = examined(text)[0].found
    assert (found.where, found.severity) == ("GPU 3", "error")
    assert found.what.endswith("stopped: GPU 3 has uncorrectable memory errors and row remappings are pending")


def test_the_table_of_dcgm_4_says_each_gpu(examined):
    assert examined(NEW.format(memory="Pass", message=""))[0].word == "HEALTHY"
    (found,) = examined(NEW.format(memory="Fail", message=MESSAGE))[0].found
    assert found.where == "GPU 1"
    assert found.what == "DCGM's test 'memory' failed: 1 uncorrectable memory errors occurred on GPU 1."
    assert found.confirm == "dcgmi diag -r 3 -j -i 1"


@pytest.mark.parametrize(
    ("title", "result"),
    [
        ("DCGM GPU Diagnostic", {"gpu_id": "2", "status": "Fail", "warnings": [{"warning": "bad"}]}),
        ("DCGM GPU Diagnostic", {"gpu_ids": "2", "status": "Fail", "warnings": "bad"}),
        (
            "DCGM Diagnostic",
            {"entity_group": "GPU", "entity_id": 2, "status": "Fail", "warnings": [{"warning": "bad"}]},
        ),
    ],
)
def test_json_of_every_version_says_the_same(examined, title, result):
    test = {"name": "Memory", "results": [{**result, "status": "Pass", "warnings": []}, result]}
    (found,) = examined(of_json(title, test))[0].found
    assert (found.where, found.what, found.severity) == ("GPU 2", "DCGM's test 'Memory' failed: bad", "error")


def test_what_was_skipped_is_not_judged(examined):
    # NVIDIA/DCGM issue 139: a T400, on which most tests are skipped.
    tests = [{"name": name, "results": [{"gpu_id": "0", "status": "Skip"}]} for name in ("PCIe", "GPU Memory")]
    examination, _ = examined(of_json("DCGM GPU Diagnostic", *tests))
    assert (examination.found, examination.healthy, examination.word) == ((), (), "NOT JUDGED")
    assert examination.not_judged[0].why == "DCGM did not run 'PCIe', 'GPU Memory'"


def test_a_configuration_and_a_pass_with_a_warning_are_warnings(examined):
    # DCGM 4: error_severity 5 is configuration. NVIDIA/DCGM issue 284: a pass of memory that could not be allocated.
    setting = {"warning": "Persistence Mode: off", "error_severity": 5, "error_id": 29}
    alloc = {"warning": "could not allocate", "error_severity": 4}
    tests = [
        {
            "name": "software",
            "results": [{**GPU, "status": "Fail", "warnings": [setting]}],
        },
        {"name": "memory", "results": [{**GPU, "status": "Pass", "warnings": [alloc]}]},
    ]
    examination, _ = examined(of_json("DCGM Diagnostic", *tests))
    assert {(found.severity, found.what) for found in examination.found} == {
        ("warning", "DCGM's test 'software' failed: Persistence Mode: off"),
        ("warning", "DCGM's test 'memory' passed, but warns: could not allocate"),
    }
    assert examination.healthy == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"DCGM Diagnostic": {"runtime_error": "Error: no GPU\\n"}}', "the diagnostic did not run: Error: no GPU"),
        ('{"DCGM Diagnostic": {"test_cat', "dcgmi diag printed JSON that cannot be read: Unterminated string"),
        (FAILED[: FAILED.index("+-----  Integration")], "the text ends before the table does"),
        (FAILED + FAILED, "the text holds 2 runs of dcgmi diag: a file each tells which result is whose"),
    ],
)
def test_what_is_cut_or_did_not_run_is_not_judged(examined, text, why):
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why.startswith(why)
