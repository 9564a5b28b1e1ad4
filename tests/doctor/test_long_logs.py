"""Logs of many thousand lines: what is done once for a text is not done for each line, or for each reader."""

from __future__ import annotations

import re

import pytest

from clusterbench.doctor import said, torch_log
from clusterbench.doctor.logs import examine_logs
from clusterbench.doctor.nccl_log import RULES
from clusterbench.doctor.torch_log import MESSAGES, WORDS
from clusterbench.tools import _prefix, kernel_log

KERNEL = (
    "[    1.000000] usb 1-1: new device\n[    2.000000] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
)
STEPS = "".join(f"[rank{rank}]: step {step} loss 2.5\n" for step in range(100) for rank in range(4))


@pytest.mark.parametrize("text", [KERNEL, STEPS + "[rank1]: RuntimeError: CUDA error: unknown error\n"])
def test_prefixes_are_taken_off_a_text_once(tmp_path, monkeypatch, text):
    lengths = []

    def unwrapped(whole):
        lengths.append(len(whole))
        return _prefix.unwrapped(whole)

    for module in (said, kernel_log):
        monkeypatch.setattr(module, "unwrapped", unwrapped)
    monkeypatch.setattr(kernel_log, "plain_text", lambda whole: pytest.fail("taken off again"))
    (tmp_path / "job.log").write_text(text)
    assert examine_logs([tmp_path / "job.log"])[0].found
    assert lengths == [len(text)]


def test_all_readers_are_given_one_text_of_a_host():
    file = said.File.of("job.log", STEPS)
    assert file.texts is file.texts


def test_a_line_that_holds_no_word_of_a_failure_is_tried_with_no_pattern(tmp_path, monkeypatch):
    tried = []

    def told(words, patterns):
        tried.append(words)

    monkeypatch.setattr(torch_log, "_told", told)
    (tmp_path / "job.log").write_text(STEPS + "[rank1]: Signal 9 (SIGKILL) received by PID 7\n[rank1]: CUDA error: x\n")
    examine_logs([tmp_path / "job.log"])
    assert tried == ["CUDA error: x"]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_what_a_message_matches_holds_a_word(message):
    plain = message.pattern.replace("\\", "").replace("(?:CUDA|HIP) error", "HIP error")
    assert any(word in plain for word in WORDS) or re.search("nccl\\(", plain)


@pytest.mark.parametrize(
    "pattern",
    [
        *(rule.pattern for rule in RULES),
        *(message.pattern for message in MESSAGES),
        *(p for _, p in kernel_log._PATTERNS),
    ],
)
def test_no_pattern_begins_with_whatever_a_line_holds(pattern):
    """It would be tried from each place in a line to its end: 10 s of 11,000 lines of NCCL's log."""
    assert not re.match(r"(?:\((?:\?P<\w+>|\?:)[^|]*\)\?)?\.\*", pattern)


def test_a_minute_of_a_log_is_reckoned_once():
    kernel_log._began.cache_clear()
    said = [f"Mar 01 12:{second // 60:02d}:{second % 60:02d} n1 kernel: usb {second}\n" for second in range(120)]
    lines = kernel_log.read("".join(said))
    seconds = [line.seconds for line in lines if line.text]
    assert seconds == [seconds[0] + second for second in range(120)]
    assert kernel_log._began.cache_info().currsize == 2
