"""The log of Megatron-LM, also of its fork with DeepSpeed: the time of steps, their throughput, memory and loss.

Source: NVIDIA/Megatron-LM, ``megatron/training/training.py`` (``training_log``), ``arguments.py`` (``_print_args``) and
``utils.py`` (``report_memory``: its MB are 2**20 bytes). The throughput counts the operations of the model. A line is
the mean of the iterations since the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterbench.errors import LayoutError, ToolError
from clusterbench.layout import ParallelLayout
from clusterbench.tools._text import count, number, positive
from clusterbench.tools.training_log import Step, TrainingLog, stop_behind
from clusterbench.words import plural

_STEP = re.compile(r"\biteration +(?P<number>\d+)/ *(?P<total>\d+) \|(?P<cells>.*)")
_ITERATION = re.compile(r"\biteration +\d+/")
_ARGUMENT = re.compile(r"^ *(?P<name>[a-z]\w+) \.{3,} (?P<value>.*)$", re.MULTILINE)
_MEMORY = re.compile(r"memory \(MB\) \| .*?max allocated: (?P<allocated>[\d.]+) .*?max reserved: (?P<reserved>[\d.]+)")
_TIME, _RATE = "elapsed time per iteration (ms)", "throughput per GPU (TFLOP/s/GPU)"
_TOKENS, _BATCH, _NAN = "tokens per gpu per second(tgs)", "global batch size", "number of nan iterations"
_NO_NUMBER = re.compile(r"(?i)nan|-?inf")
_SKIPPED = "number of skipped iterations"
_LOSSES = ("lm loss", "lm-loss")
_DEGREES = {
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "tp": "tensor_model_parallel_size",
    "ep": "expert_model_parallel_size",
}
_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``data_parallel_sharding_strategy``, which counts with one of these switches."""
_OF_FSDP = ("use_megatron_fsdp", "use_custom_fsdp")
_NO_WORD = ("ds_sequence_parallel_size", "num_distributed_optimizer_instances")
"""Above 1 they cut ranks in a way that a layout has no word for."""
_OF_ONE_RUN = ("world_size", "micro_batch_size", *_DEGREES.values())
_COUNTS = {"seq_len": "seq_length", "micro_batch_size": "micro_batch_size"}

Cells = Mapping[str, str]


def is_megatron(text: str) -> bool:
    return any(_TIME in step["cells"] for step in _STEP.finditer(text)) or "tensor_model_parallel_size ..." in text


def parse(text: str) -> TrainingLog:
    """The one run of the text.

    Raises
    ------
    ToolError
        If it holds no step and nothing that stopped it, several runs, or a step that is cut or stands beside another.
    """
    lines = text.split("\n")
    rows = list(_rows(lines))
    arguments = _arguments(text)
    last, total = (rows[-1][0], rows[-1][2]) if rows else (0, _count(arguments, "train_iters") or 0)
    stop = None if rows and rows[-1][1] >= total else stop_behind(lines, last)
    if not rows and not stop:
        raise ToolError("the log has no step that ended")
    about, notes = _about(arguments)
    first = rows[0][0] if rows else 0
    log = TrainingLog((), total, about, _count(arguments, "world_size"), first, _peaks(text), stop, notes=notes)
    return _with_steps(log, rows) if rows else log


def _arguments(text: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for found in _ARGUMENT.finditer(text):
        name, value = found["name"], found["value"].strip()
        if name in _OF_ONE_RUN and arguments.get(name, value) != value:
            raise ToolError(
                f"{name} is {arguments[name]!r} and {value!r}, so the text holds several runs: give each a file of its "
                "own"
            )
        arguments[name] = value
    return arguments


def _with_steps(log: TrainingLog, rows: Sequence[tuple[int, int, int, Cells]]) -> TrainingLog:
    """Only steps of the last batch size: while it grows, a step is not as much work as the next."""
    batch = rows[-1][3].get(_BATCH, "")
    alike = [row for row in rows if row[3].get(_BATCH, "") == batch]
    notes = log.notes
    if len(alike) < len(rows):
        notes = (*notes, f"{len(rows) - len(alike)} of {len(rows)} printed steps had another batch, and are left out")
    counted = [cells for line, _, _, cells in alike if line != log.first_line]
    if skipped := sum(cells.get(_SKIPPED, "0") != "0" for cells in counted):
        said = f"{skipped} of {plural(len(counted), 'counted step')} hold skipped iterations"
        notes = (*notes, f"{said}, which change no weights and run no optimizer")
    return replace(
        log,
        steps=tuple(_step(line, iteration, cells) for line, iteration, _, cells in alike),
        about={**log.about, "global_batch_size": count("Megatron-LM", batch, f"{_BATCH}: {batch}")}
        if batch
        else log.about,
        wrong=next(_wrong(rows), ""),
        notes=notes,
    )


def _wrong(rows: Sequence[tuple[int, int, int, Cells]]) -> Iterator[str]:
    for line, _, _, cells in rows:
        if cells.get(_NAN, "0") != "0":
            yield f"line {line} counts iterations whose loss was no number"
        if _NO_NUMBER.fullmatch(_loss(cells)):
            yield f"the loss of line {line} is no number"


def _loss(cells: Cells) -> str:
    return next((cells[name] for name in _LOSSES if name in cells), "")


def _rows(lines: Sequence[str]) -> Iterator[tuple[int, int, int, Cells]]:
    """Line, iteration, how many there will be, and cells, of each printed step."""
    seen: dict[int, int] = {}
    for line, text in enumerate(lines[:-1], 1):
        step = _STEP.search(text)
        if step is None or _TIME not in step["cells"]:
            continue
        if not step["cells"].rstrip().endswith("|"):
            raise ToolError(f"the step of line {line} is not whole: {step[0].strip()[:100]!r}")
        if len(_ITERATION.findall(text)) > 1:
            raise ToolError(f"line {line} holds two steps, of which it is not known what is of which")
        iteration = count("Megatron-LM", step["number"], step[0])
        if iteration in seen:
            raise ToolError(
                f"iteration {iteration} is on line {seen[iteration]} and on line {line}, so the text holds several "
                "runs: give each a file of its own"
            )
        seen[iteration] = line
        cells = (cell.partition(":") for cell in step["cells"].split("|"))
        total = count("Megatron-LM", step["total"], step[0])
        yield line, iteration, total, {name.strip(): value.strip() for name, _, value in cells}


def _step(line: int, iteration: int, cells: Cells) -> Step:
    def of(name: str, factor: float) -> float | None:
        return positive("Megatron-LM", cells[name], f"{name}: {cells[name]}") * factor if name in cells else None

    loss = _loss(cells)
    return Step(
        line=line,
        number=iteration,
        time_s=of(_TIME, 1e-3),
        tokens_per_s_per_rank=of(_TOKENS, 1.0),
        flops_per_s_per_rank=of(_RATE, 1e12),
        loss=number("Megatron-LM", loss, f"lm loss: {loss}") if loss and not _NO_NUMBER.fullmatch(loss) else None,
    )


def _about(arguments: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    about: dict[str, Any] = {}
    layers, width = _count(arguments, "num_layers"), _count(arguments, "hidden_size")
    if layers and width:
        about["shape"] = f"L{layers}-h{width}"
    notes: tuple[str, ...] = ()
    try:
        about |= _layout(arguments)
    except LayoutError as error:
        notes = (f"its layout has no name here: {error}",)
    about |= {name: count for name, word in _COUNTS.items() if (count := _count(arguments, word))}
    types = [kind for kind, word in (("bfloat16", "bf16"), ("float16", "fp16")) if arguments.get(word) == "True"]
    if (narrow := arguments.get("fp8", "None")) not in ("None", "False"):
        return about | {"fp8": narrow}, notes
    return about | ({"dtype": types[0]} if len(types) == 1 else {}), notes


def _layout(arguments: Mapping[str, str]) -> dict[str, str]:
    """Empty where the text does not say how ranks were cut."""
    world_size = _count(arguments, "world_size")
    if not world_size or _DEGREES["tp"] not in arguments:
        return {}
    degrees = {axis: _count(arguments, word) or 1 for axis, word in _DEGREES.items()}
    dp, left = divmod(world_size, degrees["pp"] * degrees["cp"] * degrees["tp"])
    if left:
        raise LayoutError(f"its world_size {world_size} is no multiple of pp x cp x tp")
    for word in _NO_WORD:
        if (_count(arguments, word) or 1) > 1:
            raise LayoutError(f"it has {word} {arguments[word]}")
    sp = arguments.get("sequence_parallel") == "True" and degrees["tp"] > 1
    zero = _zero(arguments) if dp * degrees["cp"] > 1 else 0
    return {"layout": str(ParallelLayout(dp=dp, sp=sp, zero=zero, **degrees))}


def _zero(arguments: Mapping[str, str]) -> int:
    """As stages of ZeRO, which of its switches are on."""
    if arguments.get("deepspeed") == "True":
        return _count(arguments, "zero_stage") or 0
    if arguments.get("use_torch_fsdp2") == "True":
        return 3
    if any(arguments.get(switch) == "True" for switch in _OF_FSDP):
        said = arguments.get("data_parallel_sharding_strategy", "")
        if said not in _SHARDED:
            raise LayoutError(f"it has data_parallel_sharding_strategy {said or 'unsaid'}")
        return _SHARDED[said]
    return int(arguments.get("use_distributed_optimizer") == "True")


def _count(arguments: Mapping[str, str], name: str) -> int | None:
    value = arguments.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 19 else None


def _peaks(text: str) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for said in _MEMORY.finditer(text):
        for kind, megabytes in said.groupdict().items():
            peaks[kind] = max(peaks.get(kind, 0.0), positive("Megatron-LM", megabytes, said[0]) * 2**20)
    return peaks
