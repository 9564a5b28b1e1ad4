"""Error counters and states of NVLinks: ``nvidia-smi nvlink -e``, ``dcgmi nvlink -e -g GPU`` (also ``-j``) and ``-s``.

Sources: stas00/ml-engineering, ``compute/accelerator/nvidia/debug.md``; facebookresearch/gcm, ``check_dcgmi.py``;
NVIDIA/DCGM, ``dcgmi/Nvlink.cpp``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError

_GPU = re.compile(r"GPU (?P<gpu>\d+): .*\(UUID: .*\)")
_SMI = re.compile(r"Link (?P<link>\d+): (?P<name>[A-Z][\w ]*?(?:Errors|discards|events)): (?P<count>\d+)")
_TITLE = "NVLINK Error Counts"
_DCGM_GPU = re.compile(r"\| GPU (?P<gpu>\d+) +\|")
_DCGM_LINK = re.compile(r"\| Link (?P<link>\d+) +\| *\|")
_DCGM_COUNT = re.compile(r"\| -> (?P<name>[\w ]+?) +\| (?P<count>\d+) +\|")
_STATES = re.compile(r"(?:[UDX_] )*[UDX_]")
_GPU_ID = re.compile(r"gpuId (?P<gpu>\d+):")
_KEY = "Key: Up=U, Down=D, Disabled=X, Not Supported=_"


@dataclass(frozen=True)
class LinkErrors:
    """Counters of one GPU by link and name, each with its line."""

    gpu: int
    counts: Mapping[tuple[int, str], int]
    lines: Mapping[tuple[int, str], str]


def is_errors(text: str) -> bool:
    return _TITLE in text or any(_SMI.fullmatch(line.strip()) for line in text.splitlines())


def is_states(text: str) -> bool:
    return _KEY in text or ("gpuId " in text and any(_GPU_ID.fullmatch(line.strip()) for line in text.splitlines()))


def parse_errors(text: str) -> tuple[LinkErrors, ...]:
    """Each GPU with its counters.

    Raises
    ------
    ToolError
        If its JSON cannot be read.
    """
    found: dict[int, tuple[dict[tuple[int, str], int], dict[tuple[int, str], str]]] = {}
    for gpu, link, name, count, line in _of_json(text) if text.lstrip().startswith("{") else _of_text(text):
        counts, lines = found.setdefault(gpu, ({}, {}))
        counts[link, name], lines[link, name] = count, line
    return tuple(LinkErrors(gpu, *found[gpu]) for gpu in sorted(found))


def _of_text(text: str) -> Iterator[tuple[int, int, str, int, str]]:
    gpu = link = -1
    for line in map(str.strip, text.splitlines()):
        if said := _GPU.fullmatch(line) or _DCGM_GPU.fullmatch(line):
            gpu = int(said["gpu"])
        elif said := _SMI.fullmatch(line):
            yield gpu, int(said["link"]), said["name"], int(said["count"]), line
        elif said := _DCGM_LINK.fullmatch(line):
            link = int(said["link"])
        elif said := _DCGM_COUNT.fullmatch(line):
            yield gpu, link, said["name"], int(said["count"]), line


def _of_json(text: str) -> Iterator[tuple[int, int, str, int, str]]:
    try:
        whole, _ = json.JSONDecoder().raw_decode(text.lstrip())
        gpu = next(int(word.removeprefix("GPU ")) for word in whole["header"] if word.startswith("GPU "))
        links = {int(name.removeprefix("Link ")): said["children"] for name, said in whole["body"].items()}
        named = [(link, name, said["value"]) for link, names in links.items() for name, said in names.items()]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ToolError(f"dcgmi nvlink -e printed JSON that cannot be read: {error}") from None
    for link, name, value in named:
        if str(value).isdecimal():  # a link that is not there says 'Not Supported'
            yield gpu, link, name, int(value), f'"{name}"'


def parse_states(text: str) -> Mapping[int, str]:
    """The states of each GPU's links as letters: U up, D down, X disabled, _ not supported."""
    states: dict[int, str] = {}
    gpu = None
    for line in map(str.strip, text.splitlines()):
        if said := _GPU_ID.fullmatch(line):
            gpu = int(said["gpu"])
        elif line.startswith("NvSwitches"):
            gpu = None
        elif gpu is not None and _STATES.fullmatch(line):
            states[gpu] = states.get(gpu, "") + line.replace(" ", "")
    return states
