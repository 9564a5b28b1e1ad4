from typing import Any

from clusterbench.cases.same_work import ranks_of_same_work
from clusterbench.types import Observation
from tests.report.synthetic import case, observation


def rank(flops: int = 1000, sent: int = 64, parameters: int = 4096, optimizer: int = 8192) -> dict[str, Any]:
    return {
        "executed": [{"operator": "aten::mm", "kind": "products", "during": "forward", "count": 8, "flops": flops}],
        "traffic": [{"axis": "tp", "op": "all_reduce", "count": 4, "size_bytes": sent, "traffic_bytes": 1.0}],
        "memory": {"total": 1, "parameters at rest": parameters, "optimizer_state at rest": optimizer},
    }


def groups(*ranks: dict[str, Any], layout: str | None = "tp2") -> list[tuple[int, ...]]:
    one = case("a", len(ranks), benchmark="train_step", layout=layout)
    passes = {name: [each[name] for each in ranks] for name in ranks[0]}
    seen = Observation(one.id, one.hash, 1, 1, ("n1",), [[1.0]] * len(ranks), passes=passes)
    return ranks_of_same_work(one, seen)


def test_ranks_whose_counts_are_equal_do_the_same() -> None:
    assert groups(rank(), rank(), rank(), rank()) == [(0, 1, 2, 3)]


def test_other_flops_other_traffic_or_states_of_another_size_are_other_work() -> None:
    assert groups(rank(), rank(flops=1001), rank(), rank(flops=1001)) == [(0, 2), (1, 3)]
    assert groups(rank(), rank(sent=128), rank()) == [(0, 2), (1,)]
    assert groups(rank(), rank(optimizer=9000), rank(parameters=2048), rank()) == [(0, 3), (1,), (2,)]


def test_states_that_differ_by_a_few_percent_are_of_one_size() -> None:
    assert groups(rank(), rank(optimizer=8500)) == [(0, 1)]


def test_without_counts_each_rank_stands_alone_unless_there_is_no_layout() -> None:
    one = case("a", 2, benchmark="train_step", layout="tp2")
    assert ranks_of_same_work(one, observation(one, [[1.0], [1.0]])) == [(0,), (1,)]
    drill = case("a", 2, benchmark="fault_drill")
    assert ranks_of_same_work(drill, observation(drill, [[1.0], [1.0]])) == [(0, 1)]


def test_a_record_that_cannot_be_read_is_no_count() -> None:
    assert groups({**rank(), "executed": "?"}, rank()) == [(0,), (1,)]
