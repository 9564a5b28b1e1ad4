"""What a run is held to know of its links."""

from __future__ import annotations

from clusterbench.cases.links import MATRIX, links
from clusterbench.rows import Row
from tests.report.synthetic import plain_row


def matrix(size_bytes: int, bytes_per_s: float, num_nodes: int = 1, between: str = "ranks") -> Row:
    point = {"size_bytes": size_bytes, "between": between}
    return plain_row("link_matrix", "median_bandwidth", bytes_per_s, point, num_nodes=num_nodes)


def known(*rows: Row) -> float | None:
    return links(rows).of(plain_row("all_reduce", "busbw", 1.0, {}, num_nodes=rows[0].num_nodes)).get(MATRIX)


def test_a_link_carries_what_the_best_matrix_shows() -> None:
    assert known(matrix(2**22, 2e9), matrix(2**20, 1e9)) == 2e9
    assert known(matrix(2**20, 1e9), matrix(2**22, 2e9)) == 2e9


def test_a_message_that_is_hardly_larger_than_an_empty_one_tells_no_rate() -> None:
    """A matrix of 24 B once had a collective reach 971,748 % of its link."""
    assert known(matrix(24, 190e3)) is None
    assert known(matrix(24, 190e3), matrix(2**16, 1e9)) == 1e9


def test_over_the_ranks_of_several_nodes_there_are_two_kinds_of_links() -> None:
    assert known(matrix(2**22, 2e9, num_nodes=2)) is None
    assert known(matrix(2**22, 2e9, num_nodes=2, between="nodes")) == 2e9
