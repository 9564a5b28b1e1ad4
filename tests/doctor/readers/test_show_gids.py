from __future__ import annotations

import pytest

# Mellanox/mlnx-tools, sbin/show_gids.
HEAD = """\
DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV
---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---
"""
LOCAL, MAPPED = "fe80:0000:0000:0000:0ac0:ebff:fe21:03d{card}", "0000:0000:0000:0000:0000:ffff:0a00:000{card}"


def gids(num_cards=4, without=(), version="v2", index=None, mapped=MAPPED):
    """A link-local and an IPv4 address of each card, of both versions of RoCE; some cards have no IPv4 address."""
    rows = []
    for card in range(num_cards):
        kept = [(LOCAL, ""), *([] if card in without else [(mapped, f"10.0.0.{card}  ")])]
        for number, (gid, ipv4) in enumerate(kept):
            for step, kind in enumerate(("v1", version)):
                at = (index or {}).get(card, 2) + step if number else step
                shown = f"\t{ipv4}\t" if ipv4 else "\t\t\t"
                rows.append(f"mlx5_{card}\t1\t{at}\t{gid.format(card=card)}{shown}{kind}\teth{card}\n")
    return f"{HEAD}{''.join(rows)}n_gids_found={len(rows)}\n"


LOST = gids(without={2})


def test_ports_with_an_address_are_in_order(examined):
    examination, kind = examined(gids())
    assert (kind, examination.word) == ("show_gids", "HEALTHY")
    assert examination.healthy[0].what == "4 RoCE ports with an IPv4 address of RoCE v2"


def test_a_port_that_lost_its_address_is_found(examined):
    (found,) = examined(LOST)[0].found
    assert (found.name, found.where, found.severity) == ("roce_gid", "mlx5_2 port 1", "error")
    assert found.what == "has link-local addresses of RoCE v2 only, and NCCL takes none of them"
    assert found.evidence.startswith("said.txt:12: mlx5_2\t1\t1\tfe80:")


@pytest.mark.parametrize(
    ("text", "severity", "what"),
    [
        (gids(num_cards=1, version="v1"), "error", "has no address of RoCE v2"),
        (
            gids(num_cards=1, mapped="2001:0db8:0000:0000:0000:0000:0000:000{card}").replace("10.0.0.0", ""),
            "warning",
            "has no IPv4 address of RoCE v2, and NCCL asks for one unless NCCL_IB_ADDR_FAMILY is AF_INET6",
        ),
        (
            gids(num_cards=2, without={0, 1}),
            "error",
            "has link-local addresses of RoCE v2 only, and NCCL takes none of them",
        ),
    ],
)
def test_hosts_of_which_no_port_has_one_are_found(examined, text, severity, what):
    found = examined(text)[0].found
    assert {(each.severity, each.what) for each in found} == {(severity, what)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (gids(num_cards=2, without={1}), "1 of 2 RoCE ports have no IPv4 address (mlx5_1 port 1)"),
        (LOST.rpartition("mlx5_3\t1\t0")[0], "the text ends within the table, at mlx5_2 port 1"),
        (f"{HEAD}mlx5_0\t1\t0\t{LOCAL.format(card=1)}\t\t\tv1\t\nn_gids_found=1\n", "its ports are of InfiniBand"),
        (gids().replace("\tv1", "\t").replace("\tv2", "\t"), "it does not tell RoCE v1 from v2"),
    ],
)
def test_what_cannot_be_judged(examined, text, why):
    examination, _ = examined(text)
    assert (examination.found, examination.not_judged[0].why) == ((), why)


def test_an_address_at_another_index_is_a_note(examined):
    (found,) = examined(gids(index={3: 4}))[0].found
    assert (found.name, found.severity, found.where) == ("gid_index", "note", "mlx5_3 port 1")
    assert found.what == "its IPv4 address of RoCE v2 is at index 5, and that of most ports at 3"
