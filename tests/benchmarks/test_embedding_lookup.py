"""Look-ups in a table that is cut over ranks: what arrives and what is updated, and that a wrong row is seen."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

from clusterbench.benchmarks import embedding_lookup
from clusterbench.benchmarks.embedding_lookup import EmbeddingLookup, content, ids_of
from clusterbench.cluster import Cluster
from clusterbench.engine.communicator import Communicator
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.rows import Row
from clusterbench.types import SAMPLES, Place
from tests.benchmarks.alone import derived
from tests.ranks import run_ranks

CPU = Place(Cluster(1, 4, "cpu"), 1)
RANKS = 3
WAYS = [
    {"ids": ids, "placement": placement, "duplicates": duplicates, "updates": updates}
    for ids, placement, duplicates, updates in product(
        ("uniform", "zipf"), ("cyclic", "blocks"), ("kept", "removed"), (True, False)
    )
]


def point(**options: Any) -> dict[str, Any]:
    asked = {"num_rows": 50, "width": 6, "lookups": (40,), **options}
    (made,) = EmbeddingLookup(**asked).points(CPU)
    return dict(made)


def of_this_rank() -> Rig:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Rig(rank=rank, world_size=world_size, local_rank=rank, host=socket.gethostname(), device=torch.device("cpu"))


def looked_up(points: Sequence[Mapping[str, Any]], calls: int) -> list[Any]:
    """What each point's samples are, after so many calls between two proofs."""
    found = []
    for each in points:
        step = EmbeddingLookup.prepare(of_this_rank(), each)
        assert step.check() == {"wrong_elements": 0.0}
        for _ in range(calls):
            step.run()
        found.append(step.passes[SAMPLES]())
        assert step.confirm(True) == {"wrong_elements": 0.0}
    return found


@pytest.mark.gloo
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4])
def test_every_way_gives_the_rows_that_were_asked_for_and_updates_each_as_often(calls: int) -> None:
    found = run_ranks(RANKS, looked_up, [point(**way) for way in WAYS], calls)
    assert found[1] == found[2] == [{}] * len(WAYS)  # one rank says it for all
    for way, samples in zip(WAYS, found[0], strict=True):
        parts = {"sort", "ids", "read", "rows", "order"} | ({"gradients", "update"} if way["updates"] else set())
        assert {key for key in samples if key.startswith("part_time")} == {f"part_time[part={part}]" for part in parts}


@pytest.mark.gloo
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_and_tables_that_do_not_divide(dtype: str) -> None:
    updates = dtype == "float64"
    points = [
        point(dtype=dtype, updates=updates, placement=placement, num_rows=num_rows)
        for placement in ("cyclic", "blocks")
        for num_rows in (3, 4, 7, 1000)
    ]
    run_ranks(RANKS, looked_up, points, 2)


def looked_up_where_sums_could_be_rounded(points: Sequence[Mapping[str, Any]], largest: int) -> None:
    for each in points:
        limit = largest * embedding_lookup._updates_of_first(each, RANKS)
        embedding_lookup.LARGEST_COUNT = {"float32": limit, "float64": limit}
        looked_up([each], 2)


@pytest.mark.gloo
@pytest.mark.parametrize("largest", [1, 2, 6])
def test_gradients_are_small_where_many_come_to_one_row(largest: int) -> None:
    run_ranks(RANKS, looked_up_where_sums_could_be_rounded, [point(**way) for way in WAYS if way["updates"]], largest)


def test_a_thousand_ranks_look_up_what_the_suite_asks_for() -> None:
    thousand = Place(Cluster(126, 8, "cuda"), 126)
    for lookups in (16384, 131072):
        asked = point(num_rows=10**8, width=128, lookups=(lookups,), ids="zipf")
        assert EmbeddingLookup().objection(asked, thousand) is None


@pytest.mark.gloo
def test_what_is_sent_is_counted() -> None:
    """By hand, from the ids alone."""
    kept, unique = point(ids="zipf", placement="blocks"), point(ids="zipf", duplicates="removed", placement="blocks")
    for each, samples in zip((kept, unique), run_ranks(RANKS, looked_up, [kept, unique], 0)[0], strict=True):
        of_ranks = [ids_of(each, rank, 0).tolist() for rank in range(RANKS)]
        if each is unique:
            of_ranks = [sorted(set(ids)) for ids in of_ranks]
        asked = [[sum(row // 17 == keeper for row in ids) for keeper in range(RANKS)] for ids in of_ranks]
        answered = [sum(column) for column in zip(*asked, strict=True)]
        rows = [answered[rank] - asked[rank][rank] for rank in range(RANKS)]
        gradients = [sum(asked[rank]) - asked[rank][rank] for rank in range(RANKS)]
        both = [sum(pair) for pair in zip(rows, gradients, strict=True)]
        assert samples["sent_bytes"][0] == max(both) * 6 * 4
        assert samples["sent_fraction"][0] == pytest.approx(sum(rows) / 120)
        assert samples["imbalance"][0] == pytest.approx(max(answered) * RANKS / sum(answered))


# A wrong one is seen


def _planted(name: str) -> None:
    """Makes look-ups wrong, on the last rank alone."""
    if dist.get_rank() != RANKS - 1:
        return
    kind = embedding_lookup._Share
    places, look_up, exchange = kind._places, kind._look_up, Communicator.all_to_all

    def swapped(self: Any, ids: torch.Tensor) -> torch.Tensor:
        return places(self, ids).flip(0)

    def stale(self: Any, ended: Any) -> Any:
        before = self.table.clone()
        counts = look_up(self, ended)
        self.table[0] = before[0]
        return counts

    def unlike(self: Any, received: torch.Tensor, sent: torch.Tensor, *counts: Any) -> None:
        exchange(self, received, sent.flip(0) if sent.ndim == 2 and len(sent) else sent, *counts)

    def kept(self: Any, ended: Any) -> Any:
        before = self.got.clone()
        counts = look_up(self, ended)
        self.got[-1] = before[-1]
        return counts

    def one_element(self: Any, ended: Any) -> Any:
        counts = look_up(self, ended)
        self.got[7, 3] += 1
        return counts

    def twice(self: Any, ended: Any) -> Any:
        counts = look_up(self, ended)
        self.table[3] += 1
        return counts

    attribute, value = {
        "rows of other ids": ("_places", swapped),
        "a row that is not updated": ("_look_up", stale),
        "a row that is not fetched": ("_look_up", kept),
        "one wrong element": ("_look_up", one_element),
        "one update too many": ("_look_up", twice),
        "rows in another order": ("", unlike),
    }[name]
    setattr(kind if attribute else Communicator, attribute or "all_to_all", value)


def _proof_of(name: str, each: Mapping[str, Any], when: str) -> str:
    step = EmbeddingLookup.prepare(of_this_rank(), each)
    if when == "later":
        step.check()
    _planted(name)
    try:
        if when == "first":
            step.check()
        else:
            step.run()
            step.confirm(True)
    except WrongResult as error:
        return str(error)
    return ""


@pytest.mark.gloo
@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize(
    "name",
    [
        "rows of other ids",
        "a row that is not updated",
        "a row that is not fetched",
        "one wrong element",
        "one update too many",
        "rows in another order",
    ],
)
def test_a_wrong_row_is_seen(name: str, when: str) -> None:
    said = run_ranks(RANKS, _proof_of, name, point(num_rows=30), when)
    assert any("gave wrong results on rank" in each for each in said)


# Numbers


def test_rows_of_any_two_ids_differ() -> None:
    ids = torch.tensor([0, 1, 112, 113, 114, 113**2, 113**3 + 5, 113**4, 10**10])
    rows = content(ids, 8)
    assert int(rows.min()) >= 0
    assert int(rows.max()) < 113
    assert min(int((rows[a] != rows[b]).sum()) for a in range(len(ids)) for b in range(a)) >= 8 - 4


def test_frequencies_are_those_of_zipf() -> None:
    """Against the sums of the power law's continuous form, rank by rank."""
    each = point(num_rows=1000, lookups=(200_000,), ids="zipf", exponent=1.05)
    counts = torch.bincount(ids_of(each, 0, 0), minlength=1000)
    whole = (1001**-0.05 - 1) / -0.05
    for rank in (1, 2, 10, 500):
        share = ((rank + 1) ** -0.05 - rank**-0.05) / -0.05 / whole
        assert int(counts[rank - 1]) / 200_000 == pytest.approx(share, rel=0.05 if rank < 50 else 0.25)
    assert int(counts.sum()) == 200_000
    uniform = torch.bincount(ids_of(point(num_rows=10, lookups=(100_000,)), 0, 0), minlength=10)
    assert uniform.tolist() == pytest.approx([10_000] * 10, rel=0.05)


def test_batches_and_ranks_look_up_other_rows() -> None:
    drawn = {tuple(ids_of(point(), rank, batch).tolist()) for rank in range(4) for batch in range(2)}
    assert len(drawn) == 8


def test_rates_are_of_all_ranks_in_the_time_of_the_slowest() -> None:
    metrics = derived("embedding_lookup", point(lookups=(1000,)), [[0.5, 0.5], [1.0, 2.0]])
    assert metrics["latency"].value == 1.5
    rate = metrics["lookups_per_s"]
    assert (rate.value, rate.low, rate.high) == pytest.approx((2000 / 1.5, 1000, 2000))
    assert metrics["row_bandwidth"].value == pytest.approx(2000 * 6 * 4 / 1.5)


def _row(benchmark: str, metric: str, value: float, at: Mapping[str, Any], case: str, world_size: int = 4) -> Row:
    return Row("run", case, benchmark, 1, "ok", at, 1, world_size, "a", "cpu", metric, "s", value)


def _beside(rows: list[Row]) -> Row:
    (found,) = EmbeddingLookup.across(rows)
    assert found.metric == "of_all_to_all"
    return found


def test_a_look_up_stands_beside_an_all_to_all_of_as_many_bytes() -> None:
    def exchange(size_bytes: int, time_s: float) -> Row:
        at = {"size_bytes": size_bytes, "group_size": 4, "dtype": "float32"}
        return _row("all_to_all", "latency", time_s, at, f"all_to_all {size_bytes}")

    own = [_row("embedding_lookup", "latency", 0.1, point(), "x"), _row("embedding_lookup", "sent_bytes", 300, {}, "x")]
    sweep = [exchange(100, 0.01), exchange(400, 0.02), exchange(1600, 0.08)]
    assert _beside(own + sweep).value == pytest.approx(0.2)  # 300 B leave a rank where it has 400, a quarter its own
    between = _beside([own[0], own[1]._replace(value=600.0), *sweep])
    assert between.value == pytest.approx(0.4)  # half way by logarithms
    assert _beside(own).basis == "no all_to_all of these ranks was measured in this run"
    assert _beside([own[0], own[1]._replace(value=3e6), *sweep]).basis.startswith("an all_to_all of ")
    assert _beside([own[0], own[1]._replace(value=0.0), *sweep]).basis == "nothing is sent"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_rows": 3}, "a table of 3 rows has none for some of 4 ranks"),
        ({"dtype": "bfloat16"}, "sums of updates are rounded in bfloat16"),
        ({"lookups": (2**26,), "num_rows": 100, "ids": "zipf"}, "the most frequent row is updated up to"),
    ],
)
def test_what_could_not_be_checked_is_refused(options: dict[str, Any], said: str) -> None:
    assert str(EmbeddingLookup().objection(point(**options), CPU)).startswith(said)


def test_what_cannot_hold_is_allowed_where_nothing_is_updated() -> None:
    assert EmbeddingLookup().objection(point(dtype="bfloat16", updates=False), CPU) is None
    assert EmbeddingLookup().objection(point(lookups=(2**26,), num_rows=100, dtype="float64"), CPU) is None


def test_an_exponent_without_zipf_has_no_effect() -> None:
    assert [key for key, _ in EmbeddingLookup().ineffective(["exponent"], CPU)] == ["exponent"]
    assert not [*EmbeddingLookup(ids="zipf").ineffective(["exponent"], CPU)]
