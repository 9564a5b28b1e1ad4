"""IOR's JSON; the text is laid out as ``src/ior-output.c`` of hpc/ior prints it (3.3), the figures are invented."""

from __future__ import annotations

import json

import pytest

RUN = """\
{
  "Version": "3.3.0",
  "Began": "Sat Mar 27 15:44:43 2021",
  "Command line": "./ior -i 2 -O summaryFormat=JSON",
  "Machine": "Linux node1",
  "tests": [
    {
      "TestID": 0,
      "StartTime": "Sat Mar 27 15:44:43 2021",
      "Parameters": {
        "testID": 0,
        "api": "POSIX",
        "testFileName": "testFile",
        "deadlineForStonewall": 0
      },
      "Options": {
        "api": "POSIX",
        "apiVersion": "",
        "test filename": "testFile",
        "access": "single-shared-file",
        "type": "independent",
        "segments": 1,
        "nodes": 2,
        "tasks": 8,
        "clients per node": 4,
        "repetitions": 2,
        "xfersize": "262144 bytes",
        "blocksize": "1 MiB",
        "aggregate filesize": "8 MiB"
      },
      "Results": [
        [ {
            "access": "write",
            "bwMiB": 912.4000,
            "blockKiB": 1024.0000,
            "xferKiB": 256.0000,
            "iops": 4282.0000,
            "openTime": 0.0012,
            "wrRdTime": 0.0075,
            "closeTime": 0.0010,
            "totalTime": 0.0088
          },
          {
            "access": "read",
            "bwMiB": 495.7600,
            "blockKiB": 1024.0000,
            "xferKiB": 256.0000,
            "openTime": 0.0158,
            "wrRdTime": 0.0142,
            "closeTime": 0.0140,
            "totalTime": 0.0161
          }
        ],
        [ {
            "access": "write",
            "bwMiB": 800.0000,
            "blockKiB": 1024.0000,
            "xferKiB": 256.0000,
            "openTime": 0.0012,
            "wrRdTime": 0.0075,
            "closeTime": 0.0010,
            "totalTime": 0.0100
          }
        ]
      ]
    }
  ],
  "summary": [
    {
      "operation": "write",
      "TestID": 0,
      "bwMaxMIB": 912.4000
    }
  ],
  "Finished": "Sat Mar 27 15:44:43 2021"
}
"""
WRONG = "ior WARNING: Incorrect data on read (5242880 errors found).\n"
ERROR = 'ior ERROR: open64("testFile", 2) failed, errno 2, No such file or directory (aiori-POSIX.c:473)\n'
LESS = "WARNING: Using actual aggregate bytes moved = 4194304.\n"
BEFORE = '          {\n            "access": "read"'


def test_each_phase_of_each_repetition_is_a_case_in_binary_megabytes(imported):
    assert imported(RUN) == {
        ("2n8/IOR_write", "bandwidth"): (912.40 * 2**20, "imported from said.txt:33"),
        ("2n8/IOR_write", "message_rate"): (4282, "imported from said.txt:33"),
        ("2n8/IOR_read", "bandwidth"): (495.76 * 2**20, "imported from said.txt:44"),
        ("2n8/IOR_write-2", "bandwidth"): (800 * 2**20, "imported from said.txt:55"),
    }


def test_warnings_among_the_lines_are_read_and_are_no_json(imported, tmp_path):
    imported(RUN.replace(BEFORE, WRONG + BEFORE))
    ends = [json.loads(line) for line in (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()]
    assert [each["status"] for each in ends] == ["ok", "wrong", "ok"]
    assert ends[1]["reason"] == "said.txt:45: IOR found other data in the file than were written"


def test_a_phase_that_moved_less_than_the_file_has_its_own_rate(imported):
    rows = imported(RUN.replace("495.7600", "247.8800").replace(BEFORE, LESS + BEFORE))
    assert rows["2n8/IOR_read", "bandwidth"][0] == 247.88 * 2**20


def test_a_test_that_gave_up_is_a_failed_case(imported, tmp_path):
    begin, end = RUN.index("        [ {"), RUN.index("      ]\n    }\n  ],")
    imported(RUN[:begin] + ERROR + RUN[end:])
    (only,) = (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()
    assert (json.loads(only)["status"], json.loads(only)["reason"]) == ("failed", f"said.txt:32: {ERROR.strip()}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            RUN.replace("912.4000", "9124.0000"),
            "IOR printed a rate that is not the bytes of its file over its time: th",
        ),
        (RUN[: RUN.index('  "summary"')], "IOR printed no JSON: "),
        (RUN.replace('"tasks": 8', '"others": 8'), "IOR's test of line 8 does not say on how many ranks it ran"),
        (RUN.replace('"bwMiB": 912.4000', '"bwMiB": 0.0000'), "IOR printed a rate or a time of zero: the phase of lin"),
        (
            RUN.replace('"bwMiB": 912.4000', '"bwMiB": NaN'),
            "IOR printed nan as 'bwMiB', which is no number that can be",
        ),
        (RUN.replace('"Results": [', '"Result": ['), "IOR's test of line 8 has phases that its 'Results' do not have"),
        (
            RUN.replace('"Options": {', '"Option": {'),
            "IOR's test of line 8 has no 'Options', which say on how many rank",
        ),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(refused, text, message):
    assert refused(text).startswith(f"said.txt: {message}")
