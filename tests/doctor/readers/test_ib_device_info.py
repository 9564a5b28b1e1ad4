"""What ``ibv_devinfo -v`` says as JSON, as SuperBench's ``ib_device_info`` writes it."""

from __future__ import annotations

import json

import pytest


def devices(**ports):
    return json.dumps(
        {
            f"hca_id:\t{name}": {
                "fw_ver": "28.41.1000",
                "num_comp_vectors:\t\t19": {
                    "port:\t1": {
                        "active_speed": "100.0 Gbps (128)",
                        "active_width": f"{width} (2)",
                        "link_layer": "InfiniBand",
                        "phys_state": physical,
                        "port_lid": "7",
                        "sm_lid": "1",
                        "state": state,
                    }
                },
                "phys_port_cnt": "1",
                "vendor_part_id": "4129",
            }
            for name, (state, physical, width) in ports.items()
        },
        indent=1,
    )


UP = ("PORT_ACTIVE (4)", "LINK_UP (5),,,", "4X")


def test_ports_that_are_alike_are_in_order(examined):
    examination, kind = examined(devices(mlx5_0=UP, mlx5_1=UP))
    assert (kind, examination.word) == ("ibv_devinfo", "HEALTHY")


@pytest.mark.parametrize(
    ("port", "name", "what"),
    [
        (("PORT_DOWN (1)", "POLLING (2)", "4X"), "port_state", "is DOWN, its link POLLING (2)"),
        (("PORT_ACTIVE (4)", "LINK_UP (5)", "1X"), "port_rate", "runs at 100 Gb/sec, and 2 of its peers at 400 Gb/s"),
    ],
)
def test_a_port_that_is_down_or_narrow_is_found(examined, port, name, what):
    (found,) = examined(devices(mlx5_0=UP, mlx5_1=UP, mlx5_2=port))[0].found
    assert (found.name, found.where, found.what) == (name, "mlx5_2 port 1", what)
    assert found.evidence.startswith("said.txt:34, in the words of /sys/")


@pytest.mark.parametrize(
    "name",
    ["ib_device_info_azure_ndmv4_a100.json", "ib_device_info_azure_ndv4_a100.json", "ib_device_info_v100.json"],
)
def test_a_port_that_is_planted_down_in_a_real_text_is_found(examined, sample, name):
    text = sample(name)
    head, state, rest = text.rpartition("PORT_ACTIVE (4)")
    assert state
    assert [found.name for found in examined(f"{head}PORT_DOWN (1){rest}")[0].found] == ["port_state"]
