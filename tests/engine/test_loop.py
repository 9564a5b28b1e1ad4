import gc
import time

import pytest
import torch

from clusterbench.engine.clock import WallClock, clock_for
from clusterbench.engine.loop import measure, warm_up
from tests.fakes import FakeClock


def nowhere(iteration):
    pass


def test_measure_returns_exactly_what_the_clock_says():
    assert measure(lambda: None, FakeClock(10.0, 10.5, 12.5, 12.75), 3, nowhere) == [0.5, 2.0, 0.25]


def test_the_samples_add_up_to_the_whole_stretch():
    marks = (1.0, 1.5, 3.25, 7.0)
    assert sum(measure(lambda: None, FakeClock(*marks), 3, nowhere)) == marks[-1] - marks[0]


def test_nothing_waits_for_the_device_between_iterations():
    clock = FakeClock(0.0, 1.0, 2.0)
    measure(lambda: clock.calls.append("run"), clock, 2, nowhere)
    assert clock.calls == ["mark", "run", "mark", "run", "mark", "settle", "seconds"]


def test_a_sample_of_several_calls_is_their_mean():
    clock = FakeClock(1.0, 3.0, 7.0)
    starts = []
    assert measure(lambda: clock.calls.append("run"), clock, 2, starts.append, calls=4) == [0.5, 1.0]
    assert starts == [0, 4]
    assert clock.calls == ["mark", *["run"] * 4, "mark", *["run"] * 4, "mark", "settle", "seconds"]


def test_who_watches_is_told_which_iteration_starts():
    iterations = []
    measure(lambda: iterations.append("run"), FakeClock(0.0, 1.0, 2.0), 2, iterations.append)
    assert iterations == [0, "run", 1, "run"]


def test_no_collection_falls_into_the_timed_stretch_and_the_collector_comes_back():
    is_collecting = []
    measure(lambda: is_collecting.append(gc.isenabled()), FakeClock(0.0, 1.0), 1, nowhere)
    assert is_collecting == [False]
    assert gc.isenabled()


def test_the_collector_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, FakeClock(0.0, 1.0), 1, nowhere)
    assert gc.isenabled()


def test_warming_up_reads_no_clock_and_ends_settled():
    clock = FakeClock()
    warm_up(lambda: clock.calls.append("run"), clock, 2, nowhere)
    assert clock.calls == ["run", "run", "settle"]


def test_an_empty_iteration_costs_less_than_20_microseconds():
    best = min(min(measure(lambda: None, WallClock(), 200, nowhere)) for _ in range(5))
    assert best < 20e-6


def test_the_cpu_is_timed_by_the_wall():
    clock = clock_for(torch.device("cpu"))
    assert isinstance(clock, WallClock)
    marks = [clock.mark()]
    time.sleep(0.01)
    marks.append(clock.mark())
    (seconds,) = clock.seconds(marks)
    assert 0.01 <= seconds < 5.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_timed_by_its_own_events():
    device = torch.device("cuda")
    cycles = 10_000_000
    (seconds,) = measure(lambda: torch.cuda._sleep(cycles), clock_for(device), 1, nowhere)
    assert 1e-3 < seconds < 1.0  # 10 million cycles at 0.01 to 10 GHz; the call itself returns in microseconds
