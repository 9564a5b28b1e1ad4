from __future__ import annotations

import pytest


def matrix(number=4, usual="OK", **pairs):
    names = [f"GPU{gpu}" for gpu in range(number)]
    lines = ["\t" + "\t".join(names)]
    for a in range(number):
        cells = ["X" if a == b else pairs.get(f"_{min(a, b)}{max(a, b)}", usual) for b in range(number)]
        lines.append("\t".join([f" {names[a]}", *cells]))
    return (
        "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  OK   = Status Ok", "  NS   = Not supported"]) + "\n"
    )


REFUSED = matrix(_12="NS")


def test_pairs_that_all_may_are_in_order(examined):
    examination, kind = examined(matrix())
    assert (kind, examination.word) == ("nvidia-smi topo -p2p", "HEALTHY")


def test_a_pair_that_may_not_where_others_may_is_found(examined):
    (found,) = examined(REFUSED)[0].found
    assert (found.name, found.where) == ("peer_access", "GPU1 -> GPU2, GPU2 -> GPU1")
    assert found.evidence.startswith("said.txt:3: GPU1")


@pytest.mark.parametrize(
    "text",
    [
        matrix(usual="NS"),
        matrix(3, _01="NS", _02="NS"),
        matrix(5, _03="TNS"),
        matrix(_02="TNS", _03="TNS", _12="TNS", _13="TNS"),
    ],
)
def test_pairs_that_may_not_by_the_hosts_plan_or_the_cards_kind_are_not_judged(examined, text):
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


def test_a_pair_that_is_planted_in_a_real_matrix_is_found(examined, sample):
    text = sample("nvidia_smi_topo_p2p_r_h100.txt")
    assert examined(text)[0].word == "HEALTHY"
    head, row, rest = text.partition(" GPU3   OK ")
    assert [found.name for found in examined(f"{head} GPU3   GNS{rest}")[0].found] == ["peer_access"]
    assert row
