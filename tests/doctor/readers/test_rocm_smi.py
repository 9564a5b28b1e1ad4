from __future__ import annotations

import json

# stas00/ml-engineering, compute/accelerator/amd/debug.md: four of the eight MI300X of that table.
TABLE = """\
========================================= ROCm System Management Interface =========================================
=================================================== Concise Info ===================================================
Device  [Model : Revision]    Temp        Power     Partitions      SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
        Name (20 chars)       (Junction)  (Socket)  (Mem, Compute)
====================================================================================================================
0       [0x74a1 : 0x00]       45.0°C      173.0W    NPS1, SPX       132Mhz  900Mhz  0%   auto  750.0W    0%   0%
        AMD Instinct MI300X
1       [0x74a1 : 0x00]       41.0°C      179.0W    NPS1, SPX       132Mhz  900Mhz  0%   auto  750.0W    0%   0%
        AMD Instinct MI300X
2       [0x74a1 : 0x00]       47.0°C      180.0W    NPS1, SPX       131Mhz  900Mhz  0%   auto  {cap}W    0%   0%
        AMD Instinct MI300X
3       [0x74a1 : 0x00]       45.0°C      178.0W    NPS1, SPX       131Mhz  900Mhz  0%   auto  750.0W   17%   0%
        AMD Instinct MI300X
====================================================================================================================
=============================================== End of ROCm SMI Log ================================================
"""
CAPPED = TABLE.format(cap="500.0")
# The form by ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py: --showrasinfo and --showxgmierr.
ERRORS = """\
============================ ROCm System Management Interface ============================
======================================== RAS Info ========================================

GPU[0]: \tRAS INFO
         Block       Status    Correctable Error  Uncorrectable Error
           UMC      ENABLED                    2                    {errors}
          SDMA     DISABLED                    0                    0
__________________________________________________________________________________________
==================================== XGMI Error status ===================================
GPU[0]\t\t: XGMI Error count: {xgmi}
=================================== End of ROCm SMI Log ==================================
"""


def test_a_power_limit_unlike_the_others_is_found(examined):
    examination, kind = examined(CAPPED)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("rocm-smi", "power_limit", "warning", "GPU 2")
    assert found.what == "its power limit is 500.0 W, and most have 750.0 W"
    assert found.evidence.startswith("said.txt:10: 2       [0x74a1")


def test_its_table_says_nothing_of_errors(examined):
    examination, _ = examined(TABLE.format(cap="750.0"))
    assert (examination.found, examination.healthy, examination.word) == ((), (), "NOT JUDGED")
    assert examination.not_judged[0].why == "the text does not say errors of memory and links"


def test_errors_of_memory_and_links_are_found(examined):
    examination, _ = examined(ERRORS.format(errors=4, xgmi="1 (Single error detected since last read)"))
    assert {(found.name, found.where, found.what) for found in examination.found} == {
        ("uncorrectable_ecc", "GPU 0", "4 errors of UMC could not be corrected"),
        ("xgmi_errors", "GPU 0", "XGMI reports errors since they were last read"),
    }
    assert examined(ERRORS.format(errors=0, xgmi="0 (No errors detected since last read)"))[0].word == "HEALTHY"


def test_json_of_cards_is_read(examined):
    # influxdata/telegraf, plugins/inputs/amd_rocm_smi/testdata/mi100_rocm602.json.
    card = {"Device ID": "0x738c", "Max Graphics Package Power (W)": "290.0", "PCIe Replay Count": "0"}
    cards = {f"card{number}": card for number in range(3)}
    cards["card1"] = card | {"Max Graphics Package Power (W)": "225.0"}
    (found,) = examined(json.dumps({**cards, "system": {"Driver version": "6.3.6"}}, indent=4) + "\n")[0].found
    assert (found.where, found.what) == ("GPU 1", "its power limit is 225.0 W, and most have 290.0 W")
