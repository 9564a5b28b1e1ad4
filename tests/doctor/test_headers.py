"""Output of several hosts one after the other, each under a header that names its host."""

from __future__ import annotations

import pytest

from clusterbench.doctor.logs import examine_logs
from clusterbench.tools._prefix import unwrapped
from tests.doctor import test_logs as said

HEADERS = {
    "dshbak": "----------------\n{}\n----------------\n",
    "ansible": "{} | CHANGED | rc=0 >>\n",
    "ansible, a command that failed": "{} | FAILED | rc=1 >>\n",
    "pssh -i": "[1] 10:11:12 [SUCCESS] {}\n",
    "pssh -i, a command that failed": "[1] 10:11:12 [FAILURE] {} Exited with error code 1\n",
    "tail": "==> {}.txt <==\n",
    "a loop": "=== {} ===\n",
}
WELL = said.IBSTAT.format(state="Active", physical="LinkUp")
ILL = said.IBSTAT.format(state="Down", physical="Polling")


def examined_of(tmp_path, text):
    (tmp_path / "all.txt").write_text(text)
    return examine_logs([tmp_path / "all.txt"])[0]


@pytest.mark.parametrize("header", HEADERS)
def test_each_host_is_judged_by_what_stands_under_its_header(tmp_path, header):
    text = f"{HEADERS[header].format('cb01')}{WELL}{HEADERS[header].format('cb02')}{ILL}"
    examination = examined_of(tmp_path, text)
    assert examination.hosts == ("cb01", "cb02")
    (found,) = examination.found
    assert (found.name, found.hosts) == ("port_state", ("cb02",))
    number = 2 * len(HEADERS[header].splitlines()) + len(WELL.splitlines()) + 1
    assert found.evidence.startswith(f"all.txt:{number}, in the words of ")


def test_a_kernel_log_is_taken_apart_too(tmp_path):
    header = HEADERS["dshbak"]
    text = f"{header.format('cb01')}[    1.0] Linux version 6.8.0\n{header.format('cb02')}{said.XID}"
    examination = examined_of(tmp_path, text)
    assert (examination.hosts, [found.hosts for found in examination.found]) == (("cb01", "cb02"), [("cb02",)])


def test_dshbak_says_once_what_hosts_say_alike(tmp_path):
    text = f"{HEADERS['dshbak'].format('cb[01,03-04]')}{WELL}{HEADERS['dshbak'].format('cb02')}{ILL}"
    examination = examined_of(tmp_path, text)
    assert examination.hosts == ("cb01", "cb03", "cb04", "cb02")
    assert [found.hosts for found in examination.found] == [("cb02",)]


@pytest.mark.parametrize(
    "names",
    [
        ("Environment", "Results"),  # parts of one program's output
        ("ibstat", "dmesg"),  # commands of a script
        ("GPU0", "GPU1"),  # parts of one host
        ("mlx5_0", "mlx5_1"),
        ("cb01", "cb01"),  # one host again
        ("dmesg.1", "dmesg.2"),
    ],
)
def test_what_programs_write_above_parts_is_no_host(names):
    text = "".join(f"=== {name} ===\na line\n" for name in names)
    assert {line.origin for line in unwrapped(text)} == {""}
    assert "\n".join(line.text for line in unwrapped(text)) == text


@pytest.mark.parametrize("names", ["n[1-99999999]", "n[1-3-5]"])
def test_what_is_no_list_of_hosts_is_one_name(tmp_path, names):
    """A file of anybody ended in a traceback."""
    examination = examined_of(tmp_path, f"{HEADERS['dshbak'].format(names)}{ILL}")
    assert [(found.name, found.hosts) for found in examination.found] == [("port_state", (names,))]


def test_a_rule_alone_is_no_header():
    text = "----------------\nPort 1\nState\n----------------\n"
    assert {line.origin for line in unwrapped(text)} == {""}
