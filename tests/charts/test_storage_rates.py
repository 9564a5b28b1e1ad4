from clusterbench.charts.storage_rates import StorageRates
from clusterbench.rows import Row
from tests.report.synthetic import of_rows


def stored(benchmark: str, value: float | None, status: str = "ok", category: str = "", **point: object) -> Row:
    about = ("r", "x", benchmark, 1, status, {"size_bytes": 2**28, **point}, 1, 2, "a", "cpu")
    row = Row(*about, "" if value is None else "bandwidth", "B/s", value)  # type: ignore[arg-type]
    return row._replace(detail={"category": category}) if category else row


def test_a_bar_says_what_moved_and_where_it_had_been() -> None:
    rows = [
        stored("file_io", 1e9, operation="write", direct=True),
        stored("file_io", 2e9, category="cold", operation="read", to="device"),
        stored("checkpoint", 5e8, operation="async_save"),
    ]
    data = StorageRates().select(of_rows(rows))
    assert data is not None
    assert [rate.label for rate in data] == [
        "file write, 256MiB, 2 ranks, direct",
        "file read, 256MiB, 2 ranks, to the GPU, cold",
        "checkpoint async save, 256MiB, 2 ranks",
    ]
    assert StorageRates().answer(data) == (
        "At its best the file system gives 2.0 GB/s (file read, 256MiB, 2 ranks, to the GPU, cold) "
        "and takes 1.0 GB/s (file write, 256MiB, 2 ranks, direct)."
    )


def test_tokens_of_a_corpus_are_said_as_what_training_gets() -> None:
    rows = []
    for workers, tokens in ((1, 1e6), (8, 4e6)):
        row = stored("token_reads", 4 * tokens, category="cold", operation="read", seq_len=4096, workers=workers)
        row = row._replace(case=str(workers))
        rows += [row, row._replace(metric="read_tokens_per_s", value=tokens)]
    data = StorageRates().select(of_rows(rows))
    assert data is not None
    assert StorageRates().answer(data) == (
        "At its best the file system gives 16.0 MB/s (sequences of 4,096 tokens, 8 workers, 2 ranks, cold). Training "
        "gets at most 4,000,000 tokens/s (sequences of 4,096 tokens, 8 workers, 2 ranks, cold)."
    )


def test_where_failures_are_known_it_says_which_save_keeps_most_of_the_time_and_how_often() -> None:
    of_saves = {"save": (785.0, 0.927), "async_save": (9.0, 0.984)}
    rows = []
    for operation, figures in of_saves.items():
        row = stored("checkpoint", 1e9, operation=operation, mtbf_h=3.0)._replace(case=operation)
        more = zip(("best_interval", "training_share"), figures, strict=True)
        rows += [row, *(row._replace(metric=metric, value=value) for metric, value in more)]
    data = StorageRates().select(of_rows(rows))
    assert data is not None
    assert (
        StorageRates()
        .answer(data)
        .endswith(
            ". Where a job fails every 3 h, an asynchronous save after each 9 s of training keeps 98.4 % of the time, "
            "before what restarts take."
        )
    )
    only = StorageRates().select(of_rows(rows[:3]))
    assert only is not None
    assert " a save after each 785 s of training keeps 92.7 % of the time" in StorageRates().answer(only)


def test_what_came_from_the_cache_is_no_answer() -> None:
    data = StorageRates().select(of_rows([stored("file_io", 2e10, category="cached", operation="read")]))
    assert data is not None
    assert StorageRates().answer(data) == ""


def test_a_full_disk_is_a_bar_without_length() -> None:
    data = StorageRates().select(
        of_rows([stored("file_io", 1e9, operation="write"), stored("checkpoint", None, "failed", operation="save")])
    )
    assert data is not None
    assert [(rate.value, rate.status) for rate in data] == [(1e9, "ok"), (None, "failed")]
    assert len(StorageRates().draw(data)) == 1


def test_nothing_measured_shows_nothing() -> None:
    assert StorageRates().select(of_rows([stored("checkpoint", None, "skipped", operation="save")])) is None
