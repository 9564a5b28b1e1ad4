from __future__ import annotations

import pytest

DOWN = '           9   40[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
PORT = '{lid:7d}{port:5d}[  ] ==( {link})==>  {remote_lid:6d}{remote_port:5d}[  ] "{remote}" ({could})\n'
WELL = "4X       106.25 Gbps Active/  LinkUp"


def fabric(changed="", link=WELL, could=" ", hosts=4, cards=4, missing=()):
    """A leaf with a port for each card of each host, told from both ends; one link is changed."""
    adapters, leaf = [], ["Switch: 0x00000000000000aa MF0;leaf:MQM9700/U1:\n"]
    ports = [(f"cb{host:02d} mlx5_{card}", 10 * host + card) for host in range(hosts) for card in range(cards)]
    for number, (name, lid) in enumerate(ports, 1):
        if name in missing:
            leaf.append(DOWN)
            continue
        said = {"link": link, "could": could} if name == changed else {"link": WELL, "could": " "}
        ends = {"lid": lid, "port": 1, "remote_lid": 9, "remote_port": number, "remote": "MF0;leaf:MQM9700/U1"}
        adapters.append(f"CA: {name}:\n      0x{number:016x} {PORT.format(**ends, **said)}")
        ends = {"lid": 9, "port": number, "remote_lid": lid, "remote_port": 1, "remote": name}
        leaf.append(f"     {PORT.format(**ends, **said)}")
    return "".join([*adapters, *leaf, DOWN])


NARROW = fabric("cb01 mlx5_2", "1X       106.25 Gbps Active/  LinkUp", "Could be 4X ")


def test_links_at_what_both_ends_can_are_in_order(examined):
    examination, kind = examined(fabric())
    assert (kind, examination.word) == ("iblinkinfo", "HEALTHY")
    what = "16 links of the fabric as wide and as fast as both ends can; 1 port without a link"
    assert examination.healthy[0].what == what


@pytest.mark.parametrize(
    ("link", "could", "severity", "what"),
    [
        (
            "1X 106.25 Gbps Active/  LinkUp",
            "Could be 4X ",
            "error",
            "runs at 1X 106.25 Gb/s, and both ends could at 4X",
        ),
        (
            "2X 106.25 Gbps Active/  LinkUp",
            "Could be 4X ",
            "warning",
            "runs at 2X 106.25 Gb/s, and both ends could at 4X",
        ),
        (
            "4X 25.78125 Gbps Active/  LinkUp",
            " Could be 106.25 Gbps",
            "error",
            "runs at 4X 25.78125 Gb/s, and both ends could at 106.25 Gb/s",
        ),
        (
            "4X 106.25 Gbps Initialize/  LinkUp",
            " ",
            "error",
            "is up and in the state Initialize: no subnet manager made it active",
        ),
        ("4X 106.25 Gbps Active/LinkErrorRecovery", " ", "error", "is in the state LinkErrorRecovery, not LinkUp"),
    ],
)
def test_a_link_below_what_both_ends_can_is_found(examined, link, could, severity, what):
    (found,) = examined(fabric("cb01 mlx5_2", link, could))[0].found
    assert (found.name, found.severity, found.what) == ("fabric_links", severity, f"its link {what}")
    assert found.where == "cb01 mlx5_2 port 1 and MF0;leaf:MQM9700/U1 port 7"
    assert found.evidence.startswith("said.txt:14: 0x")


def test_a_host_with_a_link_fewer_than_its_peers_is_found(examined):
    (found,) = examined(fabric(missing={"cb02 mlx5_3"}))[0].found
    assert (found.where, found.what) == ("cb02", "has 3 links to the fabric, and most hosts 4")


def test_a_host_of_another_kind_is_not(examined):
    missing = {f"cb03 mlx5_{card}" for card in (1, 2, 3)}
    assert examined(fabric(missing=missing))[0].word == "HEALTHY"


def test_a_fabric_that_is_slow_alike_is_not_judged(examined):
    line = '0x{0:016x} "   leaf" 4 {0:4d}[  ] ==( 4X 2.5 Gbps Active/  LinkUp)==>  0x{0:016x} {0} 1[  ] "cb{0} mlx5_0" '
    text = "".join(f"{line.format(port)}(Could be 12X Could be 10.0 Gbps)\n" for port in range(1, 9))
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why.startswith("8 of 8 links could be 12X and 10.0 Gbps")


def test_one_lane_of_four_is_a_fault_on_every_link(examined):
    text = fabric(hosts=1).replace("4X  ", "1X  ").replace('U1" ( )', 'U1" (Could be 4X )')
    assert len(examined(text)[0].found) == 4


def test_ports_that_are_all_down_are_not_judged(examined):
    examination, _ = examined(f"Switch: 0x00000000000000aa leaf:\n{DOWN * 3}")
    assert examination.not_judged[0].why == "none of 3 ports has a link"
