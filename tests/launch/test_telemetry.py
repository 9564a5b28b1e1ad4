"""GPU samples on their way from a process of their own into an observation, with a stand-in for NVML."""

import os
import signal
import time

from clusterbench.engine.telemetry import GpuSample
from clusterbench.launch.agent import MOST_READERS, Agent
from clusterbench.launch.messages import GpuSamples, GpusSampled, SampleGpus
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


def test_the_next_case_starts_without_them(tmp_path):
    answers = {"time": done(), "case": [sample(1.0, 1e9), *reached("prepared")]}
    _, observations, _ = conduct(tmp_path, [case("a"), case("b")], **answers)
    assert [each.telemetry["a"]["GPU-a"]["num_samples"] for each in observations] == [1, 1]


@needs_compiler
def test_an_agent_hands_on_what_the_reader_of_nvml_says(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver["new"]))
    monkeypatch.setenv("FAKE_NVML_GPUS", "8")
    agent = Agent(host="here", scratch=tmp_path)
    try:
        agent.execute(SampleGpus(0.05))
        deadline, events = time.monotonic() + 120, []
        while len(events) < 2 and time.monotonic() < deadline:
            events += agent.events(0.1)
    finally:
        agent.close()
    assert [type(event) for event in events[:2]] == [GpusSampled, GpusSampled]
    assert len(events[0].sample.gpus) == 8


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
