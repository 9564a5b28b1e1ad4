"""What a verb prints and writes: words as wide as the terminal, files with an error that names their option."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from clusterbench.errors import SuiteError
from clusterbench.terminal import columns, fitted
from clusterbench.words import comment


def say(text: str, err: bool = False) -> None:
    """Words for people, as wide as their terminal."""
    click.echo(fitted(text, sys.stderr if err else sys.stdout), err=err)


def add_remark(text: str, err: bool = False) -> None:
    say("\n".join(comment(text, "  ", columns(sys.stderr if err else sys.stdout))), err)


def give_up_output() -> None:
    """What waits for a full disk would fail again when the process ends, with another exit code."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def write(text: str, out: Path | None, option: str = "--out") -> None:
    """To a file, which is no record of a run, or to stdout where none is named."""
    if out is None:
        click.echo(text, nl=False)
        return
    from clusterbench.run_folder import expect_no_record

    expect_no_record(out, option)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SuiteError(f"{option} {out} cannot be written: {error.strerror}.") from None


def expect_others(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """That no option names as its output what is read, or what another option writes.

    Raises
    ------
    SuiteError
        For the first that does.
    """
    taken = {path.resolve(): said for said, path in read.items() if path is not None}
    for option, path in written.items():
        if path is not None:
            if (said := taken.get(path.resolve())) is not None:
                raise SuiteError(f"{option} {path} is the file of {said}; name another one.")
            taken[path.resolve()] = option
