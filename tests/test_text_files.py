"""Files as people have them: packed, in another encoding, or with each line in JSON."""

from __future__ import annotations

import gzip
import json
import os
import zlib

import pytest

from clusterbench import text_files
from clusterbench.derive import read
from clusterbench.doctor.logs import examine_logs
from clusterbench.errors import SuiteError
from clusterbench.importing import import_files
from clusterbench.text_files import log_text, read_text
from tests.doctor import test_logs as said
from tests.test_importing import PRINTED
from tests.tools.test_nccl_log import WHOLE

FAULTY = WHOLE + said.WHOLE_WITH_A_FAULT


def docker(text):
    time = "2026-03-02T14:10:00.123456789Z"
    return "".join(
        json.dumps({"log": f"{line}\n", "stream": "stdout", "time": time}) + "\n" for line in text.splitlines()
    )


HOLDS = {
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip in two parts": lambda text: gzip.compress(text[:700].encode()) + gzip.compress(text[700:].encode()),
    "PowerShell's UTF-16": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16, the high byte first": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "Docker": lambda text: docker(text).encode(),
    "Docker, packed": lambda text: gzip.compress(docker(text).encode()),
}


@pytest.mark.parametrize("kind", HOLDS)
def test_how_a_file_is_written_changes_nothing(tmp_path, kind):
    (tmp_path / "job.log").write_bytes(FAULTY.encode())
    plain = examine_logs([tmp_path / "job.log"])
    assert [found.name for found in plain[0].found] == ["transfer_given_up"]
    (tmp_path / "job.log").write_bytes(HOLDS[kind](FAULTY))
    assert examine_logs([tmp_path / "job.log"]) == plain


@pytest.mark.parametrize("kind", HOLDS)
def test_a_table_is_imported_however_it_is_written(tmp_path, kind):
    figures = []
    for name, data in (("plain", PRINTED.encode()), ("as_written", HOLDS[kind](PRINTED))):
        (tmp_path / "a.txt").write_bytes(data)
        run = import_files([tmp_path / "a.txt"], None, tmp_path / name)
        figures.append([(row.case, row.metric, row.value, row.basis) for row in read(run).rows])
    assert figures[0] == figures[1]


def test_a_table_that_is_packed_and_cut_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(PRINTED.encode())[:-9])
    with pytest.raises(SuiteError, match=r"a\.gz is cut, or goes on with what is not packed\.\nhint: unpack it"):
        read_text(tmp_path / "a.gz")


def test_a_long_line_of_docker_is_put_together_where_it_ends(tmp_path):
    parts = [{"log": "a " * 4}, {"log": "b\n"}, {"log": "c\n"}]
    (tmp_path / "x").write_text("".join(f"{json.dumps(part)}\n" for part in parts) + "no JSON\n")
    assert log_text(tmp_path / "x") == "\na a a a b\nc\nno JSON\n"


@pytest.mark.parametrize("members", [1, 3])
def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, members):
    monkeypatch.setattr(text_files, "_MOST_UNPACKED", 2**20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(2**20 // members + 9)) * members)
    with pytest.raises(SuiteError, match=r"bomb\.gz unpacks to more than 1 MiB"):
        log_text(tmp_path / "bomb.gz")


def test_a_packed_file_that_is_cut_says_what_stands_before_and_a_broken_one_is_refused(tmp_path):
    text = "".join(f"line {number} {os.urandom(4).hex()}\n" for number in range(5000))
    packed = gzip.compress(text.encode())
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    assert text.startswith(log_text(tmp_path / "cut.gz"))
    assert len(log_text(tmp_path / "cut.gz")) > len(text) // 4
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b" + zlib.compress(b"x" * 99))
    with pytest.raises(SuiteError, match=r"broken\.gz cannot be unpacked"):
        log_text(tmp_path / "broken.gz")


def test_digits_beyond_reason_are_no_number(tmp_path):
    """Python makes no number of 5,000, and said so in the words of a traceback, at 24 places of 1,711 tried."""
    path = tmp_path / "said.txt"
    path.write_text(f"first\nXid 79 on GPU {'9' * 5000}\n")
    with pytest.raises(SuiteError, match=r"^said\.txt:2: 5,000 digits in a row are no number; the file is damaged\.$"):
        read_text(path)
    assert log_text(path) == f"first\nXid 79 on GPU {'x' * 5000}\n"
    path.write_text(f"{'9' * 299}\n")
    assert read_text(path) == log_text(path) == f"{'9' * 299}\n"
