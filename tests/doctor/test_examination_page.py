from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import date

import pytest

from clusterbench.checks import judge
from clusterbench.doctor import examine
from clusterbench.doctor.accept import accepting, read_accepted
from clusterbench.doctor.catalogue import sources
from clusterbench.doctor.examination_page import examination_page
from clusterbench.doctor.verb import with_lost
from tests.doctor.page_parts import section, suspects, words
from tests.doctor.test_doctor import ENTRY, PORT, down, examined
from tests.doctor.test_verb import doctor
from tests.facts.machine import healthy

TODAY = date(2026, 11, 24)


def page(examination):
    return examination_page(examination, sources(), TODAY)


def swapping():
    machine = healthy()
    machine.files["/proc/swaps"] = "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 33554428 1024 -2\n"
    return machine


def test_the_verdict_is_first_and_the_worst_host_heads_the_table(tmp_path):
    html = page(examined(tmp_path, n1=swapping(), n2=healthy(), n3=down()))
    assert words(html[html.index('<div class="verdict') : html.index("<nav")]).startswith(
        "cluster SUSPECT 1 error and 1 warning on 2 of 3 hosts; in order: "
    )
    assert [line[:2] for line in suspects(html)] == [("n3", "1 error"), ("n1", "1 warning")]
    assert section(html, "hosts").endswith("Nothing that counts was found on these. 1 host n2")


def test_a_finding_says_where_evidence_source_command_and_remedy(tmp_path):
    said = section(page(examined(tmp_path, n1=healthy(), n2=down())), "findings")
    assert said == (
        "Findings n2 error mlx5_3 port 1 (0000:4b:00.0) : is DOWN, its link Polling port_state "
        f"Evidence: {PORT}/state: 1: DOWN; phys_state: 2: Polling "
        "Source: /sys/class/infiniband/*/ports/*/state, phys_state Confirm: ibstat "
        "Fix: reseat or replace cable and transceiver; look at the switch's port; for INIT: is a subnet manager "
        "running?"
    )


def test_advice_that_stands_above_is_not_repeated(tmp_path):
    machine = down()
    machine.files[f"{PORT.replace('mlx5_3', 'mlx5_4')}/state"] = "1: DOWN\n"
    said = section(page(examined(tmp_path, n1=machine)), "findings")
    assert (said.count("port_state"), said.count("Confirm: ibstat")) == (2, 1)


def test_hosts_that_share_a_finding_are_all_named(tmp_path):
    machine = down()
    machines = {f"n{number}": machine for number in range(8)}
    said = section(page(examined(tmp_path, **machines, n9=healthy())), "findings")
    assert "8 hosts: n0, n1, n2, n3, n4, n5 and 2 more 8 hosts n0, n1, n2, n3, n4, n5, n6, n7" in said


def test_what_is_not_judged_says_what_it_takes_and_on_which_host(tmp_path):
    html = page(examined(tmp_path, n1=healthy(), n3=healthy().without("/proc/self/limits")))
    said = section(html, "not-judged")
    assert said == (
        "Not judged it takes a host that shows /proc/self/limits "
        "memlock, open_files, processes, stack_size: /proc/self/limits is not there n3"
    )
    assert "not judged there: memlock, open_files, processes, stack_size. 1 host n3" in section(html, "hosts")


def test_what_is_accepted_is_shown_with_why_and_suspects_no_host(tmp_path):
    (tmp_path / "accept.yaml").write_text(ENTRY)
    examination = accepting(examined(tmp_path, n1=healthy(), n2=down()), read_accepted(tmp_path / "accept.yaml"), TODAY)
    html = page(examination)
    assert section(html, "accepted").startswith("Accepted n2: mlx5_3 port 1 (0000:4b:00.0) : is DOWN")
    assert section(html, "accepted").endswith("Accepted: waits for a cable (until 2026-12-31)")
    assert (suspects(html), section(html, "findings")) == ([], "")


def test_one_healthy_host_has_no_table_of_hosts_and_says_what_was_seen(tmp_path):
    html = page(examine(["n1"], judge([healthy().host(tmp_path)])))
    assert "<h1>Is n1 healthy?</h1>" in html
    assert (section(html, "hosts"), section(html, "findings")) == ("", "")
    assert "virtualised bare metal" in section(html, "in-order")


def test_the_words_of_machines_that_it_uses_are_explained_and_no_others(tmp_path):
    said = section(page(examined(tmp_path, n1=healthy())), "words")
    assert said.startswith("Words in this page ")
    assert "GPU Graphics processing unit: the accelerator that computes." in said
    assert "ECC Error-correcting code: finds and mends bits of memory that flipped." in said
    assert "TP Tensor parallelism" not in said


def test_a_host_that_was_not_reached_is_on_the_page(tmp_path):
    html = page(with_lost(examined(tmp_path, n1=healthy()), ["n2=ssh n2: Connection refused"]))
    assert suspects(html) == [("n2", "1 error", "was not reached [not_reached]")]
    assert "Evidence: ssh n2: Connection refused Source: ssh, or the launcher" in section(html, "findings")


def test_words_of_a_host_stay_words_and_nothing_is_loaded(tmp_path):
    html = page(with_lost(examined(tmp_path, n1=healthy()), ["<b>n2</b>=<script>alert(1)</script>"]))
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert not re.search(r'(?:src|href)="(?!#)', html)


def test_the_verb_writes_what_it_prints_into_one_file_and_replaces_it(tmp_path):
    path = tmp_path / "cluster.html"
    path.write_text("old")
    done = doctor("--quick", "--page", str(path))
    assert done.returncode in (0, 1), done.stderr
    word, _, rest = done.stdout.splitlines()[0].partition(": ")
    assert f"{word} {rest}" in words(path.read_text())
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.html"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none/page.html", "--page none/page.html cannot be written: No such file or directory."),
        ("/", "'--page': File '/' is a directory"),
    ],
)
def test_a_page_that_cannot_be_written_is_a_mistake(path, message):
    done = doctor("--quick", "--page", path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""  # nothing was looked at yet
    assert "Traceback" not in done.stderr


def test_without_a_page_neither_templates_nor_numpy_nor_matplotlib_are_loaded():
    program = (
        "import sys, clusterbench.cli\n"
        "clusterbench.cli.main(['doctor', '--quick'], standalone_mode=False)\n"
        "print({'torch', 'matplotlib', 'numpy', 'jinja2'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "set()"


def test_a_page_loads_neither_torch_nor_matplotlib(tmp_path):
    program = (
        "import sys, clusterbench.cli\n"
        f"clusterbench.cli.main(['doctor', '--quick', '--page', {str(tmp_path / 'p.html')!r}], standalone_mode=False)\n"
        "print({'torch', 'matplotlib', 'pandas'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "set()"
    assert (tmp_path / "p.html").exists()


def test_of_files_no_source_of_a_host_is_told(tmp_path):
    log = tmp_path / "dmesg.txt"
    log.write_text("[  100.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n")
    done = doctor("--log", str(log), "--page", str(tmp_path / "p.html"), "--json", str(tmp_path / "p.json"))
    assert done.returncode == 1, done.stderr
    said = section((tmp_path / "p.html").read_text(), "findings")
    (found,) = [each for each in json.loads((tmp_path / "p.json").read_text())["found"] if each["name"] == "xid"]
    assert f"Evidence: {found['evidence']}" in said
    assert "Source:" not in said
