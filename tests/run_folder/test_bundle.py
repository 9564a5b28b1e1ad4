"""A run on its way to somebody else: whole, without secrets, and nothing written elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.errors import RunFolderError
from clusterbench.run_folder import bundle
from clusterbench.run_folder.bundle import open_bundle, write_bundle
from tests.report.synthetic import good_run, plant

HUGGING_FACE = "hf_" + "a1B2c3D4e5" * 4


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = good_run(tmp_path / "a-run").path
    (path / "logs" / "start-0000-rank-0000.log").write_text(f"token {HUGGING_FACE} and mine, s3cret/value+1\n")
    return path


def forged(path: Path, files: dict[str, bytes], link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo("run/link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    return path


def refusal(archive: Path, into: Path) -> str:
    with pytest.raises(RunFolderError) as caught:
        open_bundle(archive, into)
    return str(caught.value)


def test_there_and_back_is_the_same_but_for_secrets(run: Path, tmp_path: Path) -> None:
    archive, replaced = write_bundle(run, None, {"MY_API_KEY": "s3cret/value+1", "HOME": "/root", "A_TOKEN": "short"})
    assert archive == tmp_path / "a-run.clusterbench.tar.gz"
    assert replaced == ("logs/start-0000-rank-0000.log",)
    back = open_bundle(archive, tmp_path / "there")
    assert back == tmp_path / "there" / "a-run"
    log = "logs/start-0000-rank-0000.log"
    assert (back / log).read_text() == "token [removed] and mine, [removed]\n"
    files = {path.relative_to(run) for path in run.rglob("*") if path.is_file()}
    assert {path.relative_to(back) for path in back.rglob("*") if path.is_file()} == {*files, Path("MANIFEST.json")}
    for name in files - {Path(log)}:
        assert (back / name).read_bytes() == (run / name).read_bytes()


def test_report_opens_it(run: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(main, ["bundle", str(run), "--out", str(tmp_path / "x.tar.gz")], catch_exceptions=False)
    assert made.exit_code == 0
    assert made.output.splitlines() == [
        f"{tmp_path / 'x.tar.gz'}",
        "what looked like a secret was replaced in logs/start-0000-rank-0000.log",
    ]
    (tmp_path / "there").mkdir()
    (tmp_path / "x.tar.gz").rename(tmp_path / "there" / "x.tar.gz")
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "there" / "x.tar.gz")], catch_exceptions=False)
    assert shown.exit_code == 0
    assert (tmp_path / "there" / "a-run" / "index.html").exists()


def test_what_exists_is_never_overwritten(run: Path, tmp_path: Path) -> None:
    archive, _ = write_bundle(run, None, {})
    with pytest.raises(RunFolderError) as caught:
        write_bundle(run, None, {})
    assert str(caught.value) == f"{archive} exists.\nhint: name another file with --out"
    assert refusal(archive, tmp_path).startswith(f"{run} exists, and the bundle would be unpacked there.")


def test_a_bundle_is_not_written_into_its_own_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, and held a part of itself; the next one held it whole."""
    before = sorted(run.rglob("*"))
    monkeypatch.chdir(run)
    for out in (run / "x.tar.gz", Path("x.tar.gz"), run / "logs" / ".." / "x.tar.gz"):
        done = CliRunner().invoke(main, ["bundle", ".", "--out", str(out)], catch_exceptions=False)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: --out {out} is inside the run, and would be bundled with it.\n"
            "hint: name a file elsewhere; without --out it is written beside the run's folder\n"
        )
    assert sorted(run.rglob("*")) == before


def test_a_bundle_that_was_changed_is_refused(run: Path, tmp_path: Path) -> None:
    archive, _ = write_bundle(run, None, {})
    with tarfile.open(archive) as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    files["a-run/outcomes.jsonl"] = files["a-run/outcomes.jsonl"].replace(b'"ok"', b'"no"')
    assert refusal(forged(tmp_path / "f.tar.gz", files), tmp_path / "there") == (
        f"{tmp_path / 'f.tar.gz'} was damaged or changed: 1 of {len(files) - 1} files are not what its MANIFEST.json "
        "says, the first is 'outcomes.jsonl'"
    )
    assert not (tmp_path / "there").exists()


def test_a_bundle_that_was_cut_is_refused(run: Path, tmp_path: Path) -> None:
    archive, _ = write_bundle(run, None, {})
    whole = archive.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) * 9 // 10):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:length])
        assert refusal(tmp_path / "cut.tar.gz", tmp_path / "there").startswith(f"{tmp_path / 'cut.tar.gz'} is not")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "run/../../evil", "alone"])
def test_nothing_is_written_elsewhere(tmp_path: Path, name: str) -> None:
    data = b"x"
    manifest = json.dumps({"sha256": {"evil": hashlib.sha256(data).hexdigest()}}).encode()
    archive = forged(tmp_path / "f.tar.gz", {name: data, "run/MANIFEST.json": manifest})
    assert refusal(archive, tmp_path / "there") == (
        f"{archive} is not a bundle: it holds {name!r}, which is no file of a run"
    )
    assert not (tmp_path / "evil").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    archive = forged(tmp_path / "f.tar.gz", {"run/MANIFEST.json": b"{}"}, link="/etc/passwd")
    assert refusal(archive, tmp_path / "there").endswith("it holds 'run/link', which is no file of a run")


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b"hello"))
    assert refusal(tmp_path / "x", tmp_path).startswith(f"{tmp_path / 'x'} is not a bundle that can be read:")
    assert refusal(forged(tmp_path / "y", {"run/a": b""}), tmp_path) == (
        f"{tmp_path / 'y'} is not a bundle: its MANIFEST.json is missing or damaged"
    )


# Bundles that were made to harm


def tar_of(path: Path, blocks: Iterable[bytes]) -> Path:
    """A compressed archive of these blocks as they are, whatever they say of themselves."""
    with gzip.open(path, "wb") as file:
        for block in blocks:
            file.write(block)
    return path


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


NESTED = b"[" * 100_000
EMPTY_LISTS = b'{"sha256":{},"x":[' + b"[]," * 2_000_000 + b"[]]}"
ZEROS = 80 * 2**20
CHAIN = b"30 comment=%s\n" % (b"x" * 18)

HARMFUL: dict[str, Callable[[], Iterator[bytes]]] = {
    "zeros": lambda: iter([header("run/a", ZEROS), *[bytes(2**20)] * (ZEROS >> 20)]),
    "more than there is": lambda: iter([header("run/a", 9 * 2**30)]),
    "less than nothing": lambda: iter([header("run/a", -512), header("run/b", 0)]),
    "a header of 80 MiB": lambda: iter([header("x", ZEROS, tarfile.XHDTYPE), *[bytes(2**20)] * (ZEROS >> 20)]),
    "a name of 80 MiB": lambda: iter([header("x", ZEROS, tarfile.GNUTYPE_LONGNAME), *[b"a" * 2**20] * (ZEROS >> 20)]),
    "a header of less than nothing": lambda: iter([header("x", -1, tarfile.XHDTYPE)]),
    "a header without end": lambda: iter([header("x", len(CHAIN), tarfile.XHDTYPE) + padded(CHAIN)] * 900),
    "a number of 5,000 digits": lambda: iter(
        [header("x", 6000, tarfile.XHDTYPE), padded(b"9" * 5000 + b" a=b\n"), bytes(512)]
    ),
    "headers for all": lambda: iter([header("x", len(CHAIN), tarfile.XGLTYPE), padded(CHAIN), header("run/a", 0)]),
    "1,500 folders deep": lambda: iter([header("run/" + "a/" * 1500 + "b", 0)]),
    "a name of 300 bytes": lambda: iter([header("run/a", 1), padded(b"x"), header("run/" + "\xe4" * 150, 0)]),
    "a sparse file": lambda: iter([header("run/a", 0, tarfile.GNUTYPE_SPARSE)]),
    "the same twice": lambda: iter([header("run/a", 0), header("run/a", 0)]),
    "many files": lambda: (header(f"run/{number}", 0) for number in range(4)),
    "a file as a folder": lambda: iter([header("run/a", 0), header("run/a/b", 0), *manifest(b"", "a", "a/b")]),
    "a manifest of empty lists": lambda: iter(
        [header("run/MANIFEST.json", len(EMPTY_LISTS)), padded(EMPTY_LISTS), bytes(1024)]
    ),
    "a manifest of brackets": lambda: iter([header("run/MANIFEST.json", len(NESTED)), padded(NESTED), bytes(1024)]),
}


def manifest(data: bytes, *names: str) -> tuple[bytes, ...]:
    sums = json.dumps({"sha256": dict.fromkeys(names, hashlib.sha256(data).hexdigest())}).encode()
    return header("run/MANIFEST.json", len(sums)), padded(sums), bytes(1024)


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_bundle_made_to_harm_is_refused_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MOST_FILES", 3)
    archive = tar_of(tmp_path / "f.tar.gz", HARMFUL[kind]())
    tracemalloc.start()
    said = refusal(archive, tmp_path)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.startswith((f"{archive} ", f"{tmp_path / 'run'} cannot be written: "))
    assert len(said) < 400
    assert "\n" not in said
    assert [*tmp_path.iterdir()] == [archive]
    assert most_bytes < 20 * 2**20


def test_one_folder_that_is_whole_is_private(run: Path, tmp_path: Path) -> None:
    archive, _ = write_bundle(run, None, {})
    back = open_bundle(archive, tmp_path / "there")
    assert back.stat().st_mode & 0o777 == 0o700
    assert [*back.parent.iterdir()] == [back]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "BUNDLE", "RUN"],
        ["compare", "RUN", "BUNDLE"],
        ["baseline", "BUNDLE", "--out", "base.jsonl"],
        ["trend", "BUNDLE", "RUN"],
        ["price", "BUNDLE"],
        ["advise", "--shape", "llama-8b", "--tokens", "2^20", "--cluster", "BUNDLE"],
    ],
)
def test_what_takes_a_run_says_of_a_bundle_how_to_make_its_folder(run: Path, arguments: list[str]) -> None:
    """'compare' called it no baseline, to be written again, and 'price' a file that was cut off by a crash."""
    archive, _ = write_bundle(run, None, {})
    named = {"BUNDLE": str(archive), "RUN": str(run)}
    done = CliRunner().invoke(main, [named.get(word, word) for word in arguments])
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: {archive} is a bundle, and not the folder of a run.\n"
        f"hint: 'clusterbench report {archive}' unpacks the folder beside it; name that\n"
    )


def test_a_bundle_that_is_unpacked_already_is_not_unpacked_again_and_its_folder_is_to_be_named(run: Path) -> None:
    archive, _ = write_bundle(run, None, {})
    assert refusal(archive, run.parent) == (
        f"{run} exists, and the bundle would be unpacked there.\n"
        f"hint: 'clusterbench report {run}' if that is it, else move it away"
    )
