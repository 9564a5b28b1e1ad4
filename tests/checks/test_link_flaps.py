from __future__ import annotations

import pytest

from clusterbench.checks.link_flaps import LinkFlaps
from tests.facts.healthy.kernel_log import logging

DOWN, UP = ("mlx5_core 0000:18:00.0 ibs0: Link down", "mlx5_core 0000:18:00.0 ibs0: Link up")


def test_a_link_that_went_down_twice_is_found(tmp_path):
    (fault,) = LinkFlaps().judge(logging(DOWN, UP, DOWN, UP).host(tmp_path)).faults
    assert (fault.where, fault.what) == ("ibs0", "lost its link, 2 times, last 2026-03-02 14:01:39 UTC")


@pytest.mark.parametrize("texts", [(DOWN, UP), (), ("mlx5_core 0000:29:00.0 ibs1: Link down",) * 3])
def test_one_that_went_down_once_or_was_never_up_is_none(tmp_path, texts):
    assert LinkFlaps().judge(logging(*texts).host(tmp_path)).healthy.startswith("no link that went down repeatedly")


# netdev_info() of drivers prints "driver address interface: "; igb.c its own name behind; bonding/bond_main.c, in its
# words since 5.3 and before.
@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("mlx5_core 0000:5c:00.0 gpu0rdma0: Link {}", "gpu0rdma0"),
        ("mlx5_core 0000:5c:00.0 p1p1: Link {}", "p1p1"),
        ("mlx5_core 0000:5c:00.0 rail3: Link {}", "rail3"),
        ("igb 0000:06:00.0 p2p1: igb: p2p1 NIC Link is {}", "p2p1"),
        ("tg3 0000:01:00.0 eth0: Link is {}", "eth0"),
        ("mlx4_en: eth2: Link {}", "eth2"),
        ("bond0: (slave ens1f0): link status definitely {}, disabling slave", "ens1f0"),
        ("bond0: link status definitely {} for interface rail3, disabling it", "rail3"),
    ],
)
def test_an_interface_of_any_name_is_named_whole(tmp_path, said, where):
    down, up = said.format("down"), said.format("up")
    (fault,) = LinkFlaps().judge(logging(up, down, up, down).host(tmp_path)).faults
    assert (fault.where, fault.what[:23]) == (where, "lost its link, 2 times,")


def test_what_driver_and_bond_say_of_one_loss_counts_once(tmp_path):
    said = ("mlx5_core 0000:5c:00.0 ens1f0: Link {}", "bond0: (slave ens1f0): link status definitely {}")
    once = [text.format(way) for way in ("up", "down", "up") for text in said]
    assert LinkFlaps().judge(logging(*once).host(tmp_path)).healthy


# drivers/infiniband/core/cache.c, since Linux 6.13: a port of InfiniBand has no other word on its link.
PORT = "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link {}"


def test_a_port_of_infiniband_that_went_down_twice_is_found(tmp_path):
    said = [PORT.format(state) for state in ("INIT", "ACTIVE", "DOWN", "INIT", "ACTIVE", "DOWN")]
    (fault,) = LinkFlaps().judge(logging(*said).host(tmp_path)).faults
    assert (fault.where, fault.what[:23]) == ("mlx5_5 port 1", "lost its link, 2 times,")


def test_what_the_port_of_an_interface_says_of_one_loss_counts_once(tmp_path):
    driver = "mlx5_core 0000:ab:00.0 ens1f0: Link {}"
    said = [driver.format("up"), PORT.format("ACTIVE"), driver.format("down"), PORT.format("DOWN")] * 2
    (fault,) = LinkFlaps().judge(logging(*said).host(tmp_path)).faults
    assert (fault.where, fault.what[:23]) == ("ens1f0", "lost its link, 2 times,")


def test_a_port_that_no_subnet_manager_makes_active_has_lost_no_link(tmp_path):
    said = [PORT.format(state) for state in ("ACTIVE", "INIT", "ARMED", "ACTIVE", "INIT")]
    assert LinkFlaps().judge(logging(*said).host(tmp_path)).healthy


@pytest.mark.parametrize(
    "said", ["ata1: SATA link {} (SStatus 0 SControl 300)", "pcieport 0000:3a:00.0: pciehp: Slot(12): Link {}"]
)
def test_links_of_disks_and_slots_are_no_interfaces(tmp_path, said):
    texts = [said.format(way) for way in ("up", "down")] * 3
    assert LinkFlaps().judge(logging(*texts).host(tmp_path)).healthy
