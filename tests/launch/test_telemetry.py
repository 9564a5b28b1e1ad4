"""GPU samples on their way from a process of their own into an observation, with a stand-in for NVML."""

import os
import signal
import time
from dataclasses import replace

import pytest

from clusterbench.engine.telemetry import GpuSample
from clusterbench.launch.agent import MOST_READERS, Agent
from clusterbench.launch.messages import GpuSamples, GpusSampled, RankDone, SampleGpus
from clusterbench.types import Timing
from tests.engine.test_telemetry import driver, needs_compiler
from tests.launch.test_conductor import case, conduct, done, reached
from tests.launch.test_start import children_of

__all__ = ["driver"]


def sample(time_s, clock, reasons=()):
    gpu = {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA H100",
        "sm_clock_hz": clock,
        "memory_clock_hz": None,
        "power_w": 650.0,
        "temperature_c": 61.0,
        "memory_used_bytes": 2**30,
        "utilization": 1.0,
        "energy_j": 100.0 * time_s,
        "throttle_reasons": list(reasons),
        "counters": None,
        "error": None,
    }
    return GpusSampled("a", GpuSamples(time_s, (GpuSample(**gpu),)))


def test_the_samples_of_a_case_are_kept_with_it(tmp_path):
    samples = [sample(1.0, 1.98e9), sample(2.0, 1.2e9, ["hw_thermal_slowdown"])]
    (outcome,), (observation,), _ = conduct(tmp_path, [case()], time=[*samples, *done()])
    assert outcome.status == "ok"
    gpu = observation.telemetry["a"]["GPU-a"]
    assert gpu["min_sm_clock_hz"] == 1.2e9
    assert gpu["throttle_reasons"] == {"hw_thermal_slowdown": 0.5}


def test_gpus_of_hosts_that_take_no_part_in_a_case_say_nothing_of_it(tmp_path):
    hot = replace(sample(1.0, 1.2e9, ["hw_thermal"]), host="b")
    _, (observation,), _ = conduct(tmp_path, [case()], time=[sample(1.0, 1.98e9), hot, *done()])
    assert list(observation.telemetry) == ["a"]


def test_the_next_case_starts_without_them(tmp_path):
    answers = {"time": done(), "case": [sample(1.0, 1e9), *reached("prepared")]}
    _, observations, _ = conduct(tmp_path, [case("a"), case("b")], **answers)
    assert [each.telemetry["a"]["GPU-a"]["num_samples"] for each in observations] == [1, 1]


def at_work(time_s, power_w, energy_j):
    of_gpu = replace(sample(time_s, 1.5e9).sample.gpus[0], power_w=power_w, energy_j=energy_j)
    return GpusSampled("a", GpuSamples(time_s, (of_gpu,)))


# A start, a proof and a warm-up of ten seconds that draw next to nothing, two seconds of work, and passes after it.
STREAM = [
    *(at_work(100.0 + second, 80.0, 80.0 * second) for second in range(10)),
    *(at_work(110.2 + 0.5 * half, 700.0, 1000.0 + 350.0 * half) for half in range(4)),
    *(at_work(112.5 + second, 90.0, 2400.0 + 90.0 * second) for second in range(10)),
]


def timed(*windows):
    return [RankDone(rank, "a", [0.1], {}, {}, Timing(*window)) for rank, window in enumerate(windows)]


def test_what_gpus_did_is_told_of_the_timed_stretch_alone(tmp_path):
    # one rank begins late, another ends early: in between all of them work
    windows = [(110.0, 112.2), (110.1, 112.2), (110.0, 112.0), (110.0, 112.2)]
    _, (observation,), _ = conduct(tmp_path, [case()], time=[*STREAM, *timed(*windows)])
    gpu = observation.telemetry["a"]["GPU-a"]
    assert (gpu["within"], gpu["num_samples"], gpu["mean_power_w"]) == ("timed", 4, 700.0)
    assert gpu["energy_j"] / gpu["energy_over_s"] == pytest.approx(700.0)
    assert observation.timing[1] == Timing(110.1, 112.2)
    assert observation.timing[1].warm_up is None


def test_a_stretch_without_a_sample_leaves_the_whole_case_and_says_so(tmp_path):
    _, (observation,), _ = conduct(tmp_path, [case()], time=[*STREAM, *timed(*[(109.1, 109.2)] * 4)])
    gpu = observation.telemetry["a"]["GPU-a"]
    assert (gpu["within"], gpu["num_samples"]) == ("case", 24)
    assert gpu["mean_power_w"] < 200


def test_an_error_of_a_gpu_outside_of_it_is_kept(tmp_path):
    lost = replace(STREAM[0].sample.gpus[0], error="GPU is lost")
    stream = [GpusSampled("a", GpuSamples(99.0, (lost,))), *STREAM]
    _, (observation,), _ = conduct(tmp_path, [case()], time=[*stream, *timed(*[(110.0, 112.0)] * 4)])
    assert observation.telemetry["a"]["GPU-a"]["errors"] == ["GPU is lost"]


def test_ranks_that_do_not_say_when_they_were_timed_have_the_whole_case(tmp_path):
    _, (observation,), _ = conduct(tmp_path, [case()], time=[*STREAM, *done()])
    assert observation.telemetry["a"]["GPU-a"]["within"] == "case"
    assert observation.timing == []


@needs_compiler
def test_an_agent_hands_on_what_the_reader_of_nvml_says(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver["new"]))
    monkeypatch.setenv("FAKE_NVML_GPUS", "8")
    agent = Agent(host="here", scratch=tmp_path)
    try:
        agent.execute(SampleGpus(0.05, first_gpu=2))
        deadline, events = time.monotonic() + 120, []
        while len(events) < 2 and time.monotonic() < deadline:
            events += agent.events(0.1)
    finally:
        agent.close()
    assert [type(event) for event in events[:2]] == [GpusSampled, GpusSampled]
    assert [gpu.index for gpu in events[0].sample.gpus] == [*range(2, 10)]  # as the host numbers them


@needs_compiler
def test_a_reader_that_dies_is_started_again_and_not_without_end(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver["new"]))
    agent = Agent(host="here", scratch=tmp_path)
    killed = set()
    try:
        agent.execute(SampleGpus(0.05))
        deadline = time.monotonic() + 120
        while len(killed) < MOST_READERS and time.monotonic() < deadline:
            if agent.events(0.1):
                reader = children_of(agent._spawner_process.pid)[-1]  # those before it wait to be reaped
                killed.add(reader)
                os.kill(reader, signal.SIGKILL)
        assert len(killed) == MOST_READERS
        while agent._telemetry and time.monotonic() < deadline:
            agent.events(0.1)
        assert agent._telemetry is None
    finally:
        agent.close()
