from __future__ import annotations

# huggingface/gpu-fryer, README.md; the reasons by src/logging.rs.
GPUS = """\
GPU #6:  51501 Gflops/s (min: 50577.53, max: 51677.05, dev: 51493.79)
         Temperature: 48.83°C (min: 47.00, max: 50.00)
         Throttling HW: false, Thermal SW: false, Thermal HW: false
GPU #7:  41494 Gflops/s (min: 40577.53, max: 41677.05, dev: 41493.79)
         Temperature: 48.83°C (min: 47.00, max: 50.00)
         Throttling HW: false, Thermal SW: false, Thermal HW: false
"""
WELL = f"{GPUS}All GPUs seem healthy\n"
SLOW = f"""\
{GPUS}Some GPUs are not healthy. Reasons:
  - GPU 7 - GPU is not performing as expected. Check the flops values and temperatures
"""


def test_a_slow_gpu_is_found_with_its_rate(examined):
    examination, kind = examined(SLOW)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("gpu-fryer", "burn_in", "error", "GPU 7")
    assert found.what == "gpu-fryer (at 41.5 TFLOP/s): GPU is not performing as expected"
    assert found.evidence.startswith("said.txt:8: - GPU 7 - GPU is not performing")


def test_alike_gpus_are_in_order(examined):
    assert (examined(WELL)[0].word, examined(WELL)[0].healthy[0].what) == (
        "HEALTHY",
        "2 GPUs at alike rates, none throttled",
    )


def test_a_text_without_its_verdict_is_not_judged(examined):
    assert examined(GPUS)[0].not_judged[0].why == "the text ends before the verdict"
    examination, _ = examined(SLOW[: SLOW.index("  - GPU 7")])
    assert (examination.word, examination.healthy) == ("NOT JUDGED", ())
