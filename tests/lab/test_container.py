"""The doctor as in a Kubernetes init container: no root, ``/sys`` read-only, no devices of the host."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"
CONTAINER = """
set -e
mkdir dev
for device in null zero urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mount -o bind /sys /sys
mount -o remount,bind,ro /sys
mount --rbind dev /dev
exec unshare --user --map-user=65534 --map-group=65534 "$@"
"""


def in_container(folder, command):
    """Runs a command without a capability over the host, in a mount namespace of its own."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, "sh", *command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def container(tmp_path, needs_lab):
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is absent")
    seen = in_container(tmp_path, ["sh", "-c", "id -u; ls /dev; touch /sys/x 2>&1 || true"])
    assert seen.stdout.split()[:4] == ["65534", "null", "urandom", "zero"], seen.stderr
    assert "Read-only" in seen.stdout
    return tmp_path


def test_the_manifests_command_answers_and_drains_nothing_that_it_could_not_read(container):
    (line,) = re.findall(r"^ +command: \[(clusterbench, doctor, .*)\]$", DOCS.read_text(), re.MULTILINE)
    words = [word.strip('"') for word in line.split(", ")]
    folder = container / "again"
    folder.mkdir()
    done = in_container(folder, [sys.executable, "-m", *words])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no drain: ")
    assert "Traceback" not in done.stderr


def test_what_was_not_readable_is_not_judged(container):
    folder = container / "quick"
    folder.mkdir()
    done = in_container(folder, [sys.executable, "-m", "clusterbench", "doctor", "--quick"])
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert re.match(r"(SUSPECT|NOT JUDGED|HEALTHY): ", done.stdout)
