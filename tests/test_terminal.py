import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from typing import TextIO

import pytest
from click.testing import CliRunner

from clusterbench import terminal
from clusterbench.cli import main
from clusterbench.terminal import WIDTH, columns, fitted
from clusterbench.words import aligned, comment

EXAMPLE = str(Path(__file__).parent.parent / "reports" / "examples" / "tp_scale-cpu")
LONG = "  the case train_step/1n4/tp4 of a suite took longer than it may, and so on, and so on, to the end of time"


@contextmanager
def terminal_of(wide: int) -> Iterator[TextIO]:
    head, tail = pty.openpty()
    ioctl(tail, termios.TIOCSWINSZ, struct.pack("HHHH", 24, wide, 0, 0))
    with os.fdopen(tail, "w") as stream, os.fdopen(head):
        yield stream


def test_lines_go_on_below_in_a_terminal_and_stay_whole_anywhere_else() -> None:
    with terminal_of(60) as stream:
        lines = fitted(f"short\n{LONG}\n# {LONG.strip()}", stream).split("\n")
        assert columns(stream) == 60
    assert lines == [
        "short",
        "  the case train_step/1n4/tp4 of a suite took longer than it",
        "      may, and so on, and so on, to the end of time",
        "# the case train_step/1n4/tp4 of a suite took longer than it",
        "#     may, and so on, and so on, to the end of time",
    ]
    assert fitted(LONG, StringIO()) == LONG
    assert columns(StringIO()) == WIDTH


def test_a_path_is_never_cut_and_a_terminal_without_a_size_has_none() -> None:
    path = f"/runs/{'x' * 80}/index.html"
    with terminal_of(40) as stream:
        assert fitted(f"the report of this run is {path}", stream).split("\n")[1].strip() == path
    with terminal_of(0) as stream:
        assert fitted(LONG, stream) == LONG
        assert columns(stream) == WIDTH
    with terminal_of(400) as stream:
        assert columns(stream) == WIDTH


def test_prose_of_a_table_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "of_terminal", lambda _: 50)
    lines = comment(LONG, indent="  ")
    assert max(map(len, lines)) <= 50
    assert fitted("\n".join(lines), StringIO()) == "\n".join(lines)


def test_a_table_that_is_too_wide_has_two_lines_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    header, units = ["case", "limit", "asked for by"], ["", "(s)", ""]
    rows = [["tp1", 60, "suites/a.yaml:7"], ["tp2+sp", 168, "suites/a.yaml:12"]]
    whole = aligned(header, rows, units)
    monkeypatch.setattr("clusterbench.words.of_terminal", lambda _: 24)
    assert aligned(header, rows, units) == [
        "# case    limit",
        "#           (s)",
        "#     asked for by",
        "  tp1        60",
        "      suites/a.yaml:7",
        "  tp2+sp    168",
        "      suites/a.yaml:12",
    ]
    monkeypatch.setattr("clusterbench.words.of_terminal", lambda _: 80)
    assert aligned(header, rows, units) == whole


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "suites/tp_scale.yaml", "--device", "cpu", "--num-ranks", "4"),
        ("plan", "suites/acceptance.yaml", "--device", "cpu", "--num-ranks", "1"),
        ("layout", "pp2-dp2-tp2", "--shape", "llama-8b", "--gpu", "NVIDIA H200"),
        ("doctor", "--list"),
        ("list", "shapes"),
        ("compare", EXAMPLE, EXAMPLE),
        ("trend", EXAMPLE),
        ("plan", "suites/tp_scale.yaml", "--num-ranks", "4", "--gpu", "NVIDIA H100 80GB HBM9, which is not sold yet"),
    ],
    ids=lambda words: words[0],
)
def test_every_verb_keeps_within_a_terminal_of_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "of_terminal", lambda _: 80)
    monkeypatch.setattr("clusterbench.words.of_terminal", lambda _: 80)
    said = CliRunner().invoke(main, words).output
    assert said
    for line in said.splitlines():
        assert len(line) <= 80 or len(line.split()) == 1, line


def test_a_mistaken_command_line_is_told_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["report", EXAMPLE, "--fail-on", "incomplete,suspct"]
    whole = CliRunner().invoke(main, words)
    monkeypatch.setattr(terminal, "of_terminal", lambda _: 60)
    folded = CliRunner().invoke(main, words)
    assert folded.exit_code == whole.exit_code == 2
    assert max(map(len, folded.output.splitlines())) <= 60 < max(map(len, whole.output.splitlines()))
    assert folded.output.split() == whole.output.split()


def test_no_message_goes_to_stderr_around_its_width() -> None:
    package = Path(terminal.__file__).parent
    around = [path.name for path in package.rglob("*.py") if "file=sys.stderr" in path.read_text()]
    assert around == ["terminal.py"]


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_is_closed_at_the_start_leads_nowhere_and_no_file_gets_its_number(closed, tmp_path):
    script = (
        "import os, sys; from clusterbench.terminal import open_closed_streams as opened, tell; opened();"
        f"file = open('{tmp_path}/number', 'w'); tell('not read'); file.write(str(file.fileno()))"
    )
    subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, script], check=True)
    assert int((tmp_path / "number").read_text()) > 2
    command = f'exec "$0" -m clusterbench run no-such-suite.yaml {closed}'
    assert subprocess.run(["sh", "-c", command, sys.executable], check=False).returncode == 2


def test_a_host_without_utf8_writes_the_same_page_and_escapes_what_its_terminal_lacks(tmp_path):
    output = {"PYTHONIOENCODING": "latin-1"}

    def without_utf8(*words: str) -> bytes:
        files_in_ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, "-m", "clusterbench.cli", *words]
        done = subprocess.run(command, env={**os.environ, **files_in_ascii, **output}, capture_output=True, check=False)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.stdout

    suite = tmp_path / "s.yaml"
    suite.write_text(
        "suite: s\nquestion: How fast — in µs?\nbenchmarks: [{benchmark: matmul}]\ncpu: {num_ranks: 1}\n", "utf-8"
    )
    assert b"How fast \\u2014 in \xb5s?" in without_utf8("plan", str(suite))

    run = tmp_path / "run"
    shutil.copytree(Path(__file__).parents[1] / "reports" / "examples" / "tp_scale-cpu", run)
    without_utf8("report", str(run))
    page = (run / "index.html").read_bytes()
    CliRunner().invoke(main, ["report", str(run)])
    assert page == (run / "index.html").read_bytes()
