from clusterbench.diagnoses.allocator_retries import AllocatorRetries
from tests.report.synthetic import case, reading, row

BASIS = "since the rank began, in proof, warm-up and timed steps; each makes the device wait"


def answer(*values: float | None):
    cases = [case(str(number)) for number, _ in enumerate(values)]
    rows = [row(one, "num_alloc_retries", value, basis=BASIS) for one, value in zip(cases, values, strict=True)]
    return AllocatorRetries().answer(reading(cases=cases, rows=rows))


def test_a_full_gpu_is_found_with_its_case() -> None:
    said = answer(0.0, 3.0)
    (finding,) = said.findings
    assert (finding.where, finding.severity) == ("planted/1n4/1", "warning")
    assert finding.what == (
        "the allocator of the fullest rank emptied its cache 3 times; its step is slower than with more memory"
    )
    assert finding.evidence == BASIS
    assert said.healthy == ()


def test_health_says_how_many_were_looked_at() -> None:
    assert answer(0.0, 0.0).healthy == ("no GPU of 2 training cases ran out of memory on the way",)


def test_what_was_not_counted_is_not_judged() -> None:
    assert answer(None).state == "nothing to judge"
    assert answer().state == "nothing to judge"
