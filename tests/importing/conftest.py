from __future__ import annotations

import pytest

from clusterbench.derive import read
from clusterbench.errors import SuiteError
from clusterbench.importing import Facts, import_files


@pytest.fixture
def imported(tmp_path):
    """All figures of a text by case and metric, each with its basis."""

    def of(text, name="said.txt", **facts):
        (tmp_path / name).write_text(text)
        reading = read(import_files([tmp_path / name], out=tmp_path / "run", facts=Facts(**facts)))
        assert not reading.problems
        return {
            (row.case.removeprefix("imported/"), "/".join([row.metric, *row.detail.values()])): (row.value, row.basis)
            for row in reading.rows
        }

    return of


@pytest.fixture
def cases(tmp_path):
    """The cases of a text: options, hosts of the ranks, and seconds as they are recorded."""

    def of(text, name="said.txt", **facts):
        (tmp_path / name).write_text(text)
        reading = read(import_files([tmp_path / name], out=tmp_path / "run", facts=Facts(**facts)))
        return {
            history.case.id.removeprefix("imported/"): (
                history.case.point,
                history.pooled.hosts,
                history.pooled.seconds[0][0],
            )
            for history in reading.histories
        }

    return of


@pytest.fixture
def refused(tmp_path):
    """What is said of a text that cannot be imported."""

    def of(text, name="said.txt", **facts):
        (tmp_path / name).write_text(text)
        with pytest.raises(SuiteError) as caught:
            import_files([tmp_path / name], out=tmp_path / "run", facts=Facts(**facts))
        assert not (tmp_path / "run").exists()
        return str(caught.value).replace(f"{tmp_path}/", "")

    return of
