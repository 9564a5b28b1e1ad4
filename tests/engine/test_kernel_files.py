"""A kernel whose linker was killed is compiled again."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from clusterbench.engine.compat import compiler_cache
from clusterbench.engine.kernel_files import STANDSTILL_S, drop_unfinished


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a linker makes."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("library")
    (folder / "kernel.c").write_text("int kernel(int x) { return x + 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "kernel.so", "kernel.c"], cwd=folder, check=True)
    return folder / "kernel.so"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "2r").mkdir()
    return tmp_path / "2r" / "kernel.main.so"


def much_later() -> float:
    return time.time() + 2 * STANDSTILL_S


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_what_a_killed_linker_left_is_removed(library: Path, place: Path, part: float) -> None:
    whole = library.read_bytes()
    place.write_bytes(whole[: int(part * len(whole))])
    drop_unfinished(place.parents[1], much_later)
    assert not place.exists()


def test_a_whole_library_stays(library: Path, place: Path) -> None:
    shutil.copy(library, place)
    drop_unfinished(place.parents[1], much_later)
    assert place.read_bytes() == library.read_bytes()


def test_one_that_is_being_written_is_waited_for(library: Path, place: Path) -> None:
    place.touch()
    writing = threading.Timer(0.3, place.write_bytes, [library.read_bytes()])
    writing.start()
    drop_unfinished(place.parents[1])
    assert place.read_bytes() == library.read_bytes()


def test_no_folder_is_nothing_to_do(tmp_path: Path) -> None:
    drop_unfinished(tmp_path / "none", much_later)


def test_what_torch_compiled_lies_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert compiler_cache() == tmp_path
