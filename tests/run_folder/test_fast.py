"""Both readers of records give the same verdict: what msgspec takes is taken by records.py, as the same record."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clusterbench.run_folder as run_folder
from clusterbench.job import passes as job_passes
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.fast import FastReader, list_reader
from clusterbench.run_folder.passes import OWN_SECONDS, Pass
from clusterbench.run_folder.records import parsed, reader_of, record_of
from clusterbench.types import Observation, Outcome

EXAMPLES = sorted((Path(__file__).parents[2] / "reports" / "examples").glob("*/plan.jsonl"))

READERS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], Any]]] = {
    "plan.jsonl": (run_folder._planned_case, run_folder._planned),
    "outcomes.jsonl": (FastReader(Outcome), partial(record_of, Outcome)),
    "observations.jsonl": (FastReader(Observation), partial(record_of, Observation)),
}

LINES = [
    (name, line)
    for example in EXAMPLES
    for name in READERS
    for line in example.with_name(name).read_bytes().splitlines(keepends=True)
    if len(line) < 100_000 and not line.startswith((b'{"kind":"plan"', b'{"kind":"refusal"'))
]

ODD = (
    *(b"1e999", b"-1e999", b"NaN", b"Infinity", b"-Infinity", b"1E400", b"0.1e-400", b"1e30", b"1.1e30", b"-1e31"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809"),
    *(b"1" * 19, b"-" + b"1" * 19, b"1" * 20, b"-" + b"1" * 20, b"1" * 21, b"1" * 400, b"-" + b"9" * 400, b"1" * 5000),
    *(b"1" * 19 + b".5", b"1" * 23 + b".0", b"0.0001234567890123456789", b"1.0", b"1e2", b"2", b"0", b"-0", b"-0.0"),
    *(
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"0x1",
        b"1_0",
        b"null",
        b"true",
        b"false",
        b"nul",
        b"[]",
        b"{}",
        b"[1]",
        b'{"a":[1]}',
    ),
    *(
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\uDBFFx"',
        b'"\\ud83d\\ude00"',
        b'"\\u0000"',
        b'"\\x"',
        b'"',
        b"'text'",
        b'"text"',
    ),
    *(b'"\xed\xa0\x80"', b'"\xff"', b'"\x01"', b'"\t"', b'"\x7f"', b'"ok"', b'"failed"', b'"a\nb"', '"é"'.encode()),
    *(b"[" * depth + b"]" * depth for depth in (50, 5_000, 100_000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (50, 5_000, 100_000)),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


def mutated(draw: random.Random, line: bytes) -> bytes:
    """The line with another value, name, key twice or missing, other spaces, or other bytes somewhere."""
    kind = draw.randrange(7)
    if kind == 0:
        position = draw.randrange(len(line))
        return (
            line[:position] + draw.choice((b"", bytes([draw.randrange(256)]), draw.choice(ODD))) + line[position + 1 :]
        )
    if kind == 1:
        position, odd = draw.choice([i for i, byte in enumerate(line) if byte == ord("{")]), draw.choice(ODD)
        key = draw.choice((b'"kind"', b'"hash"', b'"case"', b'"repeat"', b'"value"', b'"new"', b'"\xff"', b'"\\ud800"'))
        return line[: position + 1] + key + b":" + odd + b"," + line[position + 1 :]
    if kind == 2:
        return line.rstrip() + draw.choice((b"", b"x", b"{}", b"\x00", b" \t\r", b"\xef\xbb\xbf"))
    record = json.loads(line)
    inside, key = draw.choice(list(places(record)))
    odd = draw.choice(ODD)
    if kind == 3 and isinstance(inside, dict):
        inside[draw.choice(("new", "Value", "", "hash"))] = inside.pop(key)
        odd = b""
    elif kind == 4:
        del inside[key]
    else:
        inside[key] = "ODD"
    spaced = json.dumps(record, separators=draw.choice(((",", ":"), (" , ", "\t:  "))))
    return spaced.encode().replace(b'"ODD"', odd) + b"\n"


def verdict(read: Callable[[Any], Any], line: bytes) -> str:
    """The record as it would be written, or that there is none; NaN equals itself so, and 2 is not 2.0."""
    try:
        fields = parsed(line)
        return repr(read(fields)) if isinstance(fields, dict) else "refused"
    except (ValueError, RecursionError):
        return "refused"


def test_healthy_lines_take_the_fast_way():
    assert {name for name, _ in LINES} == {*READERS}
    for name, line in LINES:
        fast, slow = READERS[name]
        assert repr(fast(line)) == verdict(slow, line)


@settings(max_examples=3000, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_a_mutated_line_is_the_same_record_to_both_readers_or_none_to_either(seed: int) -> None:
    draw = random.Random(seed)
    name, line = draw.choice(LINES)
    for _ in range(draw.choice((1, 1, 2))):
        try:
            line = mutated(draw, line)
        except (ValueError, IndexError, RecursionError):  # what was mutated before cannot be taken apart
            break
    fast, slow = READERS[name]
    record = fast(line)
    assert record is None or repr(record) == verdict(slow, line)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd[:30]))
@pytest.mark.parametrize("name", READERS)
def test_an_odd_value_anywhere_is_the_same_to_both_readers(name: str, odd: bytes) -> None:
    fast, slow = READERS[name]
    line = next(line for kind, line in LINES if kind == name)
    for number in range(sum(1 for _ in places(json.loads(line)))):
        fields = json.loads(line)
        inside, key = list(places(fields))[number]
        inside[key] = "ODD"
        changed = json.dumps(fields).encode().replace(b'"ODD"', odd)
        record = fast(changed)
        assert record is None or repr(record) == verdict(slow, changed)


PASSES = [each for each in (*vars(job_passes).values(), OWN_SECONDS) if isinstance(each, Pass)]

OF_A_RANK: dict[str, Any] = {
    "memory": {"total": 5, "parameters": 2},
    "traffic": [{"axis": "tp", "op": "all_reduce", "count": 2, "size_bytes": 8, "traffic_bytes": 4.5}],
    "executed": [{"operator": "aten::mm", "kind": "products", "during": "forward", "count": 3, "flops": 6}],
    "exposed": {
        "communication_s": 0.1,
        "compute_s": 2,
        "exposed_s": 0.1,
        "overlap_fraction": None,
        "step_s": 0.5,
        "transfers": [{"axis": "dp", "first": 0, "way": "send", "exposed_s": [0.1], "duration_s": [0.2, 1]}],
    },
    "timeline": [["forward", 0, 1, 0.1, 0.2]],
    "attention": 0.25,
    "experts": {"seconds": {"dispatch": 0.5}, "imbalance": 1.5, "rows": [1, 2], "expert_rows": [[1, 2], [3]]},
    "own_seconds": [0.1, 2],
    "on_one_rank": {"first_loss": 7.5, "num_updates": 3, "seconds": 0.25},
    "late_step": {"loss": 7.5, "loss on one rank": 7.25, "seconds": 0.25},
}


def outcome_of(read: Callable[[], Any]) -> str:
    try:
        return repr(read())
    except (ValueError, RecursionError):
        return "refused"


@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.name)
def test_what_ranks_left_is_the_same_to_both_readers_with_any_odd_value_anywhere(kind: Pass[Any]) -> None:
    fast, slow = list_reader(kind.kind), reader_of(kind.kind)
    healthy = [OF_A_RANK[kind.name]] * 2
    assert repr(fast(healthy)) == repr(list(map(slow, healthy))) or kind.name == "timeline"
    for odd in (True, 1, 1.0, 2**63, -(2**63), 1e31, float("nan"), float("inf"), None, "text", [], {}, [1], {"a": [1]}):
        for number in range(sum(1 for _ in places(healthy))):
            ranks = json.loads(json.dumps(healthy))
            inside, key = list(places(ranks))[number]
            inside[key] = odd
            records = fast(ranks)
            assert records is None or repr(records) == outcome_of(lambda: list(map(slow, ranks)))  # noqa: B023
    for change in ({"new": 1}, {"total": True}):
        ranks = [{**OF_A_RANK[kind.name], **change}] if isinstance(OF_A_RANK[kind.name], dict) else []
        records = fast(ranks)
        assert records is None or repr(records) == outcome_of(lambda: list(map(slow, ranks)))  # noqa: B023


def test_equal_records_keep_their_types() -> None:
    first, second = (job_passes.TracedStep(number, 0.1, 0.1, None, 0.5) for number in (2, 2.0))
    records = list_reader(job_passes.TracedStep)([vars(first), vars(second)])
    assert repr(records) == repr([first, second])


def test_a_run_reads_the_same_without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> tuple[Any, ...]:
        run = RunFolder.open(EXAMPLES[0].parent)
        return run.plan(), run.outcomes(), list(run.observations()), run.problems

    with_it = read()
    monkeypatch.setitem(sys.modules, "msgspec", None)
    for reader in ("_case", "_outcome", "_observation"):
        kept = getattr(run_folder, reader)
        monkeypatch.setattr(run_folder, reader, FastReader(kept.kind, kept.also))
    assert run_folder._outcome(b"{}") is None
    assert read() == with_it


def test_equal_expectations_of_cases_are_one_object_and_a_whole_number_stays_one():
    line = next(line for name, line in LINES if name == "plan.jsonl" and b'"expected":{"' in line)
    first, again = run_folder._planned_case(line), run_folder._planned_case(line)
    assert first is not None
    assert again is not None
    key = min(first.expected)
    assert first.expected is again.expected
    fields = json.loads(line)
    kinds = []
    for value in (2.0, 2):
        fields["expected"][key]["value"] = value
        case = run_folder._planned_case(json.dumps(fields).encode())
        assert case is not None
        kinds.append(type(case.expected[key].value))
    assert kinds == [float, int]
