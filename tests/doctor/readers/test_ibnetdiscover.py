from __future__ import annotations

import pytest


def fabric(widths, spine="4xNDR"):
    """A leaf with an adapter on each port, and links to a spine."""
    leaf = [
        f'[{port}]\t"H-{port:016x}"[1]({port:x})\t# "cb{port:02d} mlx5_0" lid {port} {width}'
        for port, width in enumerate(widths, 1)
    ]
    up = [f'[{port}]\t"S-00000000000000aa"[{port}]\t# "spine" lid 9 {spine}' for port in (31, 32, 33)]
    adapters = [
        f'vendid=0x2c9\ndevid=0x1021\nCa\t1 "H-{port:016x}"\t# "cb{port:02d} mlx5_0"\n'
        f'[1]({port:x})\t"S-00000000000000bb"[{port}]\t# lid {port} lmc 0 "leaf" lid 8 {width}\n'
        for port, width in enumerate(widths, 1)
    ]
    switch = 'vendid=0x2c9\ndevid=0xd2f2\nSwitch\t64 "S-00000000000000bb"\t# "leaf" base port 0 lid 8 lmc 0\n'
    return "\n".join([switch + "\n".join([*leaf, *up]) + "\n", *adapters])


NARROW = fabric(["4xNDR", "4xNDR", "1xNDR", "4xNDR"])


def test_links_that_are_alike_are_in_order(examined):
    examination, kind = examined(fabric(["4xNDR"] * 8))
    assert (kind, examination.word) == ("ibnetdiscover", "HEALTHY")
    assert examination.healthy[0].what == "11 links of the fabric as wide and as fast as others of their kind"


@pytest.mark.parametrize(("slow", "severity"), [("1xNDR", "error"), ("4xEDR", "error"), ("2xNDR", "warning")])
def test_a_link_that_is_narrower_or_slower_than_its_kind_is_found(examined, slow, severity):
    (found,) = examined(fabric(["4xNDR", "4xNDR", slow, "4xNDR"]))[0].found
    assert (found.where, found.severity) == ("leaf port 3 and cb03 mlx5_0 port 1", severity)
    assert found.what == f"its link runs at {slow}, and most of its kind at 4xNDR"
    assert found.evidence.startswith("said.txt:6: [3]\t")


def test_a_fabric_of_two_kinds_of_links_is_not_judged(examined):
    examination, _ = examined(fabric(["4xNDR"] * 5 + ["2xNDR"] * 3))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


def test_links_to_a_spine_are_no_peers_of_adapters(examined):
    assert examined(fabric(["4xHDR"] * 4, spine="4xNDR"))[0].word == "HEALTHY"


def test_the_list_of_ports_is_read(examined):
    line = (
        "CA  {port} 1 0x7cfe9003003b4b{port} {link} - SW  9 {port} 0x7cfe9003009ce5b0 ( 'cb{port} HCA-1' - 'leaf' )\n"
    )
    text = "".join(line.format(port=port, link="1x EDR" if port == 12 else "4x EDR") for port in range(10, 15))
    (found,) = examined(text)[0].found
    assert (found.where, found.evidence[:15]) == ("cb12 HCA-1 port 1 and leaf port 12", "said.txt:3: CA ")


def test_a_narrow_link_in_a_real_text_is_found(examined, sample):
    text = sample("ibnetdiscover_superbench.txt")
    assert examined(text)[0].word == "HEALTHY"
    lines = text.split("\n")
    ends = [number for number, line in enumerate(lines) if "lid 1062 " in line]
    for number in ends:
        lines[number] = lines[number].replace("4xHDR", "1xHDR")
    planted = "\n".join(lines)
    assert len(ends) == 2
    (found,) = examined(planted)[0].found
    assert found.what == "its link runs at 1xHDR, and most of its kind at 4xHDR"
    assert "port 9" in found.where
