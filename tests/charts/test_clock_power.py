"""Clocks, power and temperature of GPUs: which is held back and why, and silence where nothing was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.charts.clock_power import MOST_GPUS, ClockPower, Watched
from clusterbench.drawing.svg import svg
from clusterbench.engine.telemetry import GpuSample, summarise
from tests.report.synthetic import case, observation, outcome
from tests.report.synthetic import reading as read

TP8, DP8 = case("tp8", 8, device="cuda"), case("dp8", 8, device="cuda")
HOT = ("hw_slowdown", "hw_thermal")


def seen(clock_hz: float, *reasons: str, count: int = 10, **values: Any) -> list[GpuSample]:
    """One GPU: idle first, then at this clock, then at 80 % of it where there are reasons to be."""
    idle = GpuSample(0, sm_clock_hz=0.3e9, power_w=90.0, temperature_c=40.0, throttle_reasons=["gpu_idle"])
    work = GpuSample(0, sm_clock_hz=clock_hz, power_w=600.0, temperature_c=60.0, throttle_reasons=[])
    held = replace(work, sm_clock_hz=0.8 * clock_hz if reasons else clock_hz, throttle_reasons=list(reasons))
    return [replace(sample, **values) for sample in (idle, *[work] * (count // 2), *[held] * (count - count // 2))]


def summary(*gpus: list[GpuSample], host: int = 0) -> dict[str, dict[str, Any]]:
    """As a run would record it, twice a second."""
    lines = [
        {
            "time_s": 100 + 0.5 * number,
            "gpus": [
                asdict(replace(sample, index=index, uuid=f"GPU-{host}{index}", name="NVIDIA H100"))
                for index, sample in enumerate(at_once)
            ],
        }
        for number, at_once in enumerate(zip(*gpus, strict=True))
    ]
    return summarise(lines)


def limits(num_gpus: int, hosts: int = 1, **changes: Any) -> dict[str, Any]:
    gpus = lambda host: [  # noqa: E731
        {"uuid": f"GPU-{host}{index}", "max_sm_clock_hz": 2e9, "power_limit_w": 700.0, **changes}
        for index in range(num_gpus)
    ]
    return {"hosts": {f"gpu-{host:02}": {"gpus": gpus(host)} for host in range(hosts)}}


def reading(telemetry: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> Reading:
    found = read((outcome(TP8), observation(TP8, telemetry=telemetry)), cases=[TP8])
    return replace(found, environment=environment or {})


def watched(telemetry: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> Watched:
    data = ClockPower().select(reading(telemetry, environment))
    assert data is not None
    return data


def test_the_gpu_with_the_lowest_clock_is_named_with_its_reason() -> None:
    slow = seen(1.8e9, *HOT)
    data = watched({"gpu-00": summary(seen(1.9e9), slow, seen(1.9e9, "sw_power_cap"), seen(1.9e9))}, limits(4))
    assert ClockPower().answer(data) == (
        "gpu-00, GPU 1 had the lowest clock while it worked: 1.62 GHz in the mean over cases, 81 % of the highest; "
        "the median of 4 GPUs is 1.8 GHz. Its clock was lowered by heat (hardware) in 45 % of the samples."
    )
    assert [gpu.label for gpu in data.gpus][:2] == ["gpu-00, GPU 1", "gpu-00, GPU 2"]


def test_like_clocks_are_said_to_be_like() -> None:
    data = watched({"gpu-00": summary(seen(1.90e9), seen(1.92e9))}, limits(2))
    assert ClockPower().answer(data) == (
        "All 2 GPUs worked at like clocks: 1.9 to 1.92 GHz in the mean over cases, 95 % of the highest."
    )


def test_one_gpu_is_held_against_its_limits() -> None:
    data = watched({"gpu-00": summary(seen(1.8e9))}, limits(1))
    assert ClockPower().answer(data) == (
        "gpu-00, GPU 0 worked at 1.8 GHz in the mean over cases, 90 % of the highest, and took 554 W of 700 W."
    )


def test_without_known_limits_there_is_no_share_and_no_line() -> None:
    data = watched({"gpu-00": summary(seen(1.8e9))})
    assert ClockPower().answer(data) == "gpu-00, GPU 0 worked at 1.8 GHz in the mean over cases, and took 554 W."
    clocks = ClockPower().draw(data)[0]
    assert [text.get_text() for text in clocks.figure.axes[0].texts] == []
    assert clocks.words(clocks.entries[0]) == "gpu-00, GPU 0; mean 1.80 GHz; lowest 1.80 GHz"


def test_there_are_panels_by_gpu_of_reasons_and_over_time() -> None:
    data = watched({"gpu-00": summary(seen(1.9e9), seen(1.8e9, *HOT), seen(1.9e9))}, limits(3))
    panels = ClockPower().draw(data)
    assert [panel.title for panel in panels] == [
        "SM clock: mean over cases, and the lowest",
        "Power: mean over cases, and the highest",
        "Temperature: mean over cases, and the highest",
        "Reasons for lowered clocks, % of samples",
        "SM clock over time planted/1n8/tp8, repeat 1",
        "Power over time planted/1n8/tp8, repeat 1",
        "Temperature over time planted/1n8/tp8, repeat 1",
    ]
    assert [panels[3].words(entry) for entry in panels[3].entries] == [
        "gpu-00, GPU 1; hardware slowdown; share of samples 45.5 %",
        "gpu-00, GPU 1; heat (hardware); share of samples 45.5 %",
    ]
    curve = panels[4].figure.axes[0].lines[-2]  # the slow one is drawn last, then the limit
    assert list(curve.get_ydata())[:2] == [0.3, 1.8]
    assert panels[4].words(panels[4].entries[0]) == "gpu-00, GPU 1; mean 1.50 GHz; lowest 300.0 MHz; highest 1.80 GHz"


def test_means_over_cases_count_their_samples() -> None:
    many, few = summary(seen(2.0e9, count=30)), summary(seen(1.0e9, count=10))
    found = read(
        (outcome(TP8), observation(TP8, telemetry={"a": many})),
        (outcome(DP8), observation(DP8, telemetry={"a": few})),
        cases=[TP8, DP8],
    )
    data = ClockPower().select(found)
    assert data is not None
    assert ClockPower().answer(data) == "a, GPU 0 worked at 1.74 GHz in the mean over cases, and took 576 W."
    over_time = [panel.title for panel in ClockPower().draw(data) if "over time" in panel.title]
    assert over_time[0] == "SM clock over time planted/1n8/dp8, repeat 1"


def test_a_gpu_that_was_idle_all_the_while_is_no_slow_one() -> None:
    idle = [replace(sample, sm_clock_hz=0.3e9, throttle_reasons=["gpu_idle"]) for sample in seen(1.9e9)]
    data = watched({"gpu-00": summary(seen(1.9e9), idle)}, limits(2))
    assert [gpu.label for gpu in data.gpus] == ["gpu-00, GPU 0"]
    assert ClockPower().left_out(data) == "1 more GPUs were idle while cases ran."


def test_a_record_of_means_alone_is_drawn_without_time() -> None:
    old = {"gpu-00": {"GPU-00": {"index": 0, "num_samples": 4, "mean_sm_clock_hz": 1.5e9, "mean_power_w": 400.0}}}
    panels = ClockPower().draw(watched(old, limits(1)))
    assert [panel.title.split(":")[0] for panel in panels] == ["SM clock", "Power"]


def test_of_many_gpus_those_with_the_lowest_clocks_are_drawn() -> None:
    data = watched({"gpu-00": summary(*(seen((1.5 + 0.01 * index) * 1e9) for index in range(40)))}, limits(40))
    assert ClockPower().left_out(data) == "Drawn are the 24 of 40 GPUs with the lowest clocks."
    clocks = ClockPower().draw(data)[0]
    assert len(clocks.entries) == 40
    assert sum(entry.area is not None for entry in clocks.entries) == MOST_GPUS


def test_without_telemetry_there_is_nothing_to_show() -> None:
    assert ClockPower().select(reading({})) is None
    assert ClockPower().select(reading({"a": {"GPU-a": {"errors": ["GPU is lost"]}}})) is None


STRANGE: list[Any] = [
    None, True, -1, 10**400, float("nan"), float("inf"), "x" * 100_000, "<b>", [], [[None]], {}, {"a": {"b": 1}},
]  # fmt: skip


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_a_damaged_record_is_left_out_and_never_raises(value: Any) -> None:
    good = summary(seen(1.9e9, "sw_power_cap"))["GPU-00"]
    broken = [{**good, name: value} for name in good]
    broken += [{**good, "course": {**good["course"], name: value}} for name in good["course"]]
    broken += [{**good, "course": {**good["course"], name: [value] * 11}} for name in good["course"]]
    gpus = {f"GPU-{number}": gpu for number, gpu in enumerate([*broken, value, good])}
    chart = ClockPower()
    for environment in ({"hosts": value}, {"hosts": {"a": value}}, limits(1, max_sm_clock_hz=value, uuid=value)):
        for telemetry in ({"a": gpus}, {"a": value}, value):
            if (data := chart.select(reading(telemetry, environment))) is not None:
                assert len(chart.answer(data)) < 500


def test_hostile_names_are_text_and_short() -> None:
    names = ["<script>alert(1)</script>", "\x1b[31m" + "x" * 100_000]
    gpu = {**summary(seen(1.9e9))["GPU-00"], "index": names[1], "throttle_reasons": dict.fromkeys(names, 0.5)}
    panels = ClockPower().draw(watched({names[0]: {names[1]: gpu}}))
    drawn = "".join(svg(panel, "n", "l") for panel in panels)
    assert len(panels) == 7
    assert "<script>" not in drawn
    assert "\x1b" not in drawn
    assert len(drawn) < 100_000
