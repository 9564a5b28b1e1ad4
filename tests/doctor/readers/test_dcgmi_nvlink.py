from __future__ import annotations

# facebookresearch/gcm, check_dcgmi.py, and NVIDIA/DCGM issue 198: all links of two H100 are down.
STATES = """\
+----------------------+
|  NvLink Link Status  |
+----------------------+
GPUs:
    gpuId 0:
        U U U U U U U U U U U U
    gpuId 1:
        {second}
NvSwitches:
    No NvSwitches found.

Key: Up=U, Down=D, Disabled=X, Not Supported=_
"""
DOWN = STATES.format(second="U U U D U U D U U U U U")


def test_links_that_are_down_are_found(examined):
    examination, kind = examined(DOWN)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("dcgmi nvlink -s", "nvlink_inactive", "error", "GPU 1")
    assert found.what == "2 NVLinks of 12 down: 3, 6"
    assert found.evidence == "said.txt:8: U U U D U U D U U U U U"


def test_links_that_are_up_are_in_order_and_disabled_ones_not_judged(examined):
    assert examined(STATES.format(second="U U U U U U U U U U U U"))[0].healthy[0].what == "2 GPUs with all NVLinks up"
    examination, _ = examined(STATES.format(second="X X X X _ _ _ _ _ _ _ _"))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why == "links of GPU 1 are disabled or not there"
