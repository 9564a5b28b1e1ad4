"""The log of torchtitan: tokens, operations and MFU of each printed step, memory and loss.

Source: pytorch/torchtitan, ``torchtitan/components/metrics.py``: tps are tokens a second of one device, memory is the
most that was reserved, and MFU is over the peak in bfloat16. A step that several ranks print has the figures of the
slowest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clusterbench.errors import ToolError
from clusterbench.tools._text import count, number
from clusterbench.tools.training_log import Step, TrainingLog, stop_behind

_STEP = re.compile(
    r"(?<!validate )step: *(?P<number>\d+) +loss: *(?P<loss>\S+) +(?:grad_norm: *\S+ +)?memory: *(?P<memory>[\d.]+)GiB"
    r"\([\d.]+%\) +(?:tps|wps): (?P<tokens>[\d,]+)"
    r"(?:(?: +tflops: (?P<tflops>[\d,.]+))? +mfu: (?P<mfu>[\d.]+%|N/A))?\s*"
)
_BEGUN = re.compile(r"(?<!validate )step: *\d+ +loss:")
_BATCH = re.compile(
    r"local batch size (?P<micro>\d+), global batch size (?P<batch>\d+), .*?sequence length (?P<length>\d+), "
    r"total steps (?P<total>\d+)"
)
_TOKENS = re.compile(
    r"(?P<micro>\d+) tokens per DP rank, (?P<batch>\d+) tokens per train step, .*?"
    r"maximum context length (?P<length>\d+), total steps (?P<total>\d+)"
)
"""Since August 2026: batches are counted in tokens, and documents packed."""
_MESH = re.compile(r"Building \d-D device mesh with \[(?P<names>[^]]*)\], \[(?P<sizes>[\d, ]+)\]")
_MESH_PAIRS = re.compile(r"Building device mesh with parallelism: (?P<pairs>.*)")
_MODEL = re.compile(r"Model (?P<name>\S+ \S+) size: [\d,]+ total parameters")
_TOOL = "torchtitan"
_SECOND_VIEWS = ("ep", "etp")
"""Degrees that are a second view of the ranks, and multiply nothing."""


def is_torchtitan(text: str) -> bool:
    return any(_STEP.search(line) for line in text.splitlines()) or "[titan]" in text


def parse(text: str) -> TrainingLog:
    """The one run of the text.

    Raises
    ------
    ToolError
        If it holds no step and nothing that stopped it, does not say its batch, holds several runs, or a step is cut.
    """
    lines = text.split("\n")
    found = [(line, step) for line, words in enumerate(lines[:-1], 1) if (step := _whole(line, words))]
    batches = {said.group(): said for form in (_BATCH, _TOKENS) for said in form.finditer(text)}
    if not batches:
        raise ToolError(
            "the log has no line with 'global batch size' or 'tokens per train step', so that the tokens of a step are "
            "not known"
        )
    if len(batches) > 1:
        raise ToolError(f"the log says {len(batches)} batches, so it holds several runs: give each a file of its own")
    _expect_one_run(lines, found)
    _expect_one_form(found)
    (said,) = batches.values()
    total = count(_TOOL, said["total"], said[0])
    tokens, batch = _batch(said)
    mesh = _mesh(text)
    world_size = math.prod(mesh.values()) if mesh else None
    last = found[-1][0] if found else 0
    reached = max((count(_TOOL, step["number"], step[0]) for _, step in found), default=0)
    stop = None if reached >= total else stop_behind(lines, last)
    if not found and not stop:
        raise ToolError("the log has no step that ended")
    about: dict[str, Any] = {"shape": model["name"]} if (model := _MODEL.search(text)) else {}
    about |= {"mesh": ", ".join(f"{name} {size}" for name, size in mesh.items())} if mesh else {}
    about |= batch
    memory = max((number(_TOOL, step["memory"], step[0]) for _, step in found), default=0)
    peaks = {"reserved": memory * 2**30} if memory else {}
    steps, wrong = _steps(found, world_size), _wrong(found)
    first = steps[0].line if steps else 0
    return TrainingLog(steps, total, about, world_size, first, peaks, stop, wrong, tokens_per_step=tokens)


def _batch(said: re.Match[str]) -> tuple[int, dict[str, int]]:
    """The tokens of a step, and its sequences; of a batch that is counted in tokens, as many as it fills."""
    micro, batch, length = (count(_TOOL, said[name], said[0]) for name in ("micro", "batch", "length"))
    if said.re is _BATCH:
        return batch * length, {"seq_len": length, "micro_batch_size": micro, "global_batch_size": batch}
    filled = {"micro_batch_size": micro, "global_batch_size": batch}
    return batch, {"seq_len": length} | {name: size // length for name, size in filled.items() if not size % length}


def _expect_one_run(lines: Sequence[str], found: Sequence[tuple[int, re.Match[str]]]) -> None:
    """Every rank of a run says its batch before any can end a second step: others would count as slow ranks of it."""
    second = next((line for line, step in found if step["number"] != found[0][1]["number"]), len(lines))
    for line, words in enumerate(lines[second:], second + 1):
        if _BATCH.search(words) or _TOKENS.search(words):
            raise ToolError(
                f"a run begins on line {line}, behind the steps of another, so the text holds several: give each a "
                "file of its own"
            )


def _expect_one_form(found: Sequence[tuple[int, re.Match[str]]]) -> None:
    """A program prints each step alike: one with less is broken in two, maybe within its last number."""
    longest = max((len(_printed(step)) for _, step in found), default=0)
    for line, step in found:
        if len(_printed(step)) < longest:
            raise ToolError(f"the step of line {line} is not whole: {step[0][:100]!r}")


def _printed(step: re.Match[str]) -> list[str]:
    return [name for name, text in step.groupdict().items() if text is not None]


def _whole(line: int, words: str) -> re.Match[str] | None:
    begun = _BEGUN.search(words)
    step = _STEP.fullmatch(words, begun.start()) if begun else None
    if begun and not step:
        raise ToolError(f"the step of line {line} is not whole: {words[begun.start() :][:100]!r}")
    return step


def _mesh(text: str) -> dict[str, int]:
    """Degrees above 1 by name; empty where the text does not say them."""
    if mesh := _MESH.search(text):
        names = re.findall(r"\w+", mesh["names"])
        sizes = [count(_TOOL, size, mesh[0]) for size in re.findall(r"\d+", mesh["sizes"])]
        pairs = list(zip(names, sizes, strict=True)) if len(names) == len(sizes) else []
    elif mesh := _MESH_PAIRS.search(text):
        pairs = [(name, count(_TOOL, size, mesh[0])) for name, size in re.findall(r"(\w+)=(\d+)", mesh["pairs"])]
        pairs = [(name, size) for name, size in pairs if name not in _SECOND_VIEWS]
    else:
        return {}
    return {name: size for name, size in pairs if size > 1} or dict(pairs[:1])


def _steps(found: Sequence[tuple[int, re.Match[str]]], world_size: int | None) -> tuple[Step, ...]:
    of_step: dict[int, list[tuple[int, Mapping[str, str]]]] = {}
    for line, step in found:
        of_step.setdefault(count(_TOOL, step["number"], step[0]), []).append((line, step.groupdict()))
    most = max((len(said) for said in of_step.values()), default=0)
    if world_size and most > world_size:
        raise ToolError(f"a step is printed {most} times by {world_size} ranks, so the text holds several runs")
    return tuple(_step(iteration, said) for iteration, said in of_step.items())


def _step(iteration: int, said: Sequence[tuple[int, Mapping[str, str]]]) -> Step:
    """Of the slowest rank."""
    rates = [count(_TOOL, each["tokens"].replace(",", ""), f"tps: {each['tokens']}") for _, each in said]
    line, slowest = said[rates.index(min(rates))]
    tflops, mfu, loss = slowest["tflops"], slowest["mfu"], slowest["loss"]
    return Step(
        line=line,
        number=iteration,
        tokens_per_s_per_rank=float(min(rates)),
        flops_per_s_per_rank=number(_TOOL, tflops.replace(",", ""), f"tflops: {tflops}") * 1e12 if tflops else None,
        mfu=number(_TOOL, mfu[:-1], f"mfu: {mfu}") / 100 if mfu and mfu != "N/A" else None,
        loss=number(_TOOL, loss, f"loss: {loss}") if re.fullmatch(r"[\d.]+", loss) else None,
    )


def _wrong(found: Sequence[tuple[int, re.Match[str]]]) -> str:
    nan = next((line for line, step in found if step["loss"].lower() in ("nan", "inf", "-inf")), None)
    return f"the loss of line {nan} is no number" if nan else ""
