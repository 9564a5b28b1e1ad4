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
    assert [rate.label for rate in data.rates] == [
        "file write, 256MiB, 2 ranks, direct",
        "file read, 256MiB, 2 ranks, to the GPU, cold",
        "checkpoint async save, 256MiB, 2 ranks",
    ]
    assert StorageRates().answer(data) == (
        "At its best the file system gives 2.0 GB/s (file read, 256MiB, 2 ranks, to the GPU, cold) "
        "and takes 1.0 GB/s (file write, 256MiB, 2 ranks, direct). A sharded checkpoint reaches 500.0 MB/s (checkpoint "
        "async save, 256MiB, 2 ranks)."
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


def test_where_restarts_and_repairs_are_known_it_says_what_they_leave_and_what_spares_are_worth() -> None:
    row = stored("checkpoint", 1e9, operation="save", mtbf_h=3.0)
    rows = [row, row._replace(metric="best_interval", value=785.0), row._replace(metric="training_share", value=0.927)]

    def said(**goodput: float) -> str:
        of_spares = [
            row._replace(metric="goodput", value=value, detail={"category": spares.replace("_", " ")} if spares else {})
            for spares, value in goodput.items()
        ]
        data = StorageRates().select(of_rows([*rows, *of_spares]))
        assert data is not None
        return StorageRates().answer(data).partition(" keeps ")[2]

    assert said(**{"": 0.877}) == "92.7 % of the time, and 87.7 % with restarts."
    assert said(no_spare_nodes=0.097, **{"8_spare_nodes": 0.725, "18_spare_nodes": 0.876}) == (
        "92.7 % of the time, and where nodes are repaired 9.7 % with no spare nodes and 87.6 % with 18 spare nodes."
    )


def test_what_came_from_the_cache_is_no_answer() -> None:
    data = StorageRates().select(of_rows([stored("file_io", 2e10, category="cached", operation="read")]))
    assert data is not None
    assert StorageRates().answer(data) == ""


def test_a_full_disk_is_a_bar_without_length() -> None:
    data = StorageRates().select(
        of_rows([stored("file_io", 1e9, operation="write"), stored("checkpoint", None, "failed", operation="save")])
    )
    assert data is not None
    assert [(rate.value, rate.status) for rate in data.rates] == [(1e9, "ok"), (None, "failed")]
    assert len(StorageRates().draw(data)) == 1


def test_nothing_measured_shows_nothing() -> None:
    assert StorageRates().select(of_rows([stored("checkpoint", None, "skipped", operation="save")])) is None


def small_files(operation: str, files_per_s: float | None, **point: object) -> Row:
    row = stored("small_files", files_per_s, operation=operation, file_bytes=4096, **point)
    return row._replace(metric="file_rate" if files_per_s else "", unit="1/s", case=f"{operation} {point}")


def test_small_files_have_a_panel_of_their_own_and_are_said() -> None:
    """The suite storage asks for many small ones, of which no chart spoke."""
    data = StorageRates().select(
        of_rows(
            [
                stored("file_io", 1e9, operation="write"),
                small_files("create", 2e3),
                small_files("create", 5e2, sync=True),
                small_files("stat", 6e5),
            ]
        )
    )
    assert data is not None
    large, small = StorageRates().draw(data)
    assert len(large.entries) == 1
    assert [entry.cells[:2] for entry in small.entries] == [
        ("create 4KiB, 2 ranks", 2e3),
        ("create 4KiB, 2 ranks, written to the disk", 5e2),
        ("stat 4KiB, 2 ranks", 6e5),
    ]
    assert StorageRates().answer(data) == (
        "At its best the file system takes 1.0 GB/s (file write, 256MiB, 2 ranks). Of small files it does "
        "500 /s (create 4KiB, 2 ranks, written to the disk) to 600.0 k/s (stat 4KiB, 2 ranks)."
    )


def test_small_files_alone_are_shown_and_one_kind_has_no_range() -> None:
    data = StorageRates().select(of_rows([small_files("delete", 2e3)]))
    assert data is not None
    assert len(StorageRates().draw(data)) == 1
    assert StorageRates().answer(data) == "Of small files it does 2.0 k/s (delete 4KiB, 2 ranks)."


def test_fio_says_its_test_blocks_and_jobs() -> None:
    about = {"block_bytes": 2**20, "jobs": 4, "depth": 1}
    rows = [
        stored("fio", 3e9, test="randread", direct=True, **about),
        stored("fio", 2e9, test="write", direct=False, **about),
    ]
    data = StorageRates().select(of_rows(rows))
    assert data is not None
    assert StorageRates().answer(data) == (
        "At its best the file system gives 3.0 GB/s (fio randread, blocks of 1MiB, 4 jobs, direct) "
        "and takes 2.0 GB/s (fio write, blocks of 1MiB, 4 jobs)."
    )
