"""``amd-smi`` and ``rocm-smi``: what they say of GPUs of AMD, as they print it and as JSON.

Sources: ROCm/amdsmi, ``CHANGELOG.md`` and ``amdsmi_cli``; ROCm/rocm_smi_lib, ``python_smi_tools/rocm_smi.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusterbench.errors import ToolError

_GPU = re.compile(r"GPU: (?P<gpu>\d+)\s*")
_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][\w /]*):(?: (?P<value>.*?))?\s*")
_SECTIONS = re.compile(
    r"(?m)^ +(?:ASIC|BUS|ECC|ECC_BLOCKS|PCIE|THROTTLE|USAGE|POWER|CLOCK|TEMPERATURE|LIMIT|PARTITION|RAS|VRAM):\s*$"
)
_COUNT = re.compile(r"(\d+)(?: .*)?")
_CONCISE = "ROCm System Management Interface"
_ROCM_LINE = re.compile(r"GPU\[(?P<gpu>\d+)\]\s*: (?P<key>[^:]+?): (?P<value>.*?)\s*")
_ROCM_RAS = re.compile(r"GPU\[(?P<gpu>\d+)\]:\s+RAS INFO\s*")
_ROCM_BLOCK = re.compile(r"\s*(?P<block>[A-Z][A-Z0-9_]+)\s+[A-Z ]+?\s+(?P<correctable>\d+)\s+(?P<uncorrectable>\d+)\s*")
_ROCM_ROW = re.compile(r"(?P<gpu>\d+) .*°C .*?(?P<power>[\d.]+)W .* (?P<cap>[\d.]+)W .*%.*")


@dataclass(frozen=True)
class AmdGpu:
    """Values by path, as ``ECC.TOTAL_UNCORRECTABLE_COUNT``, each with the line or the key that says it."""

    number: int
    values: Mapping[str, str]
    lines: Mapping[str, str]

    def count(self, path: str) -> int | None:
        """A whole number; None where it is not there, or not for this GPU."""
        said = _COUNT.fullmatch(self.values.get(path, ""))
        return int(said[1]) if said else None

    def paths(self, end: str) -> Iterator[str]:
        """Those that end so."""
        return (path for path in self.values if path.endswith(end))


def is_amd_smi(text: str) -> bool:
    if text.lstrip().startswith(("[", "{")) and '"gpu"' in text:
        return re.search(r'"(?:asic|ecc|pcie|throttle|ecc_blocks|bus)"\s*:', text) is not None
    return re.search(r"(?m)^GPU: \d+\s*$", text) is not None and _SECTIONS.search(text) is not None


def is_rocm_smi(text: str) -> bool:
    if text.lstrip().startswith("{"):
        return re.search(r'"card\d+"\s*:\s*\{', text) is not None
    is_answer = any(map(_ROCM_ROW.fullmatch, map(str.strip, text.splitlines()))) or "GPU[" in text
    return _CONCISE in text and "usage: rocm-smi" not in text and is_answer


def parse(text: str) -> tuple[AmdGpu, ...]:
    """The GPUs of ``amd-smi``.

    Raises
    ------
    ToolError
        If its JSON cannot be read.
    """
    return tuple(_of_json(text)) if text.lstrip().startswith(("[", "{")) else tuple(_of_text(text))


def _of_text(text: str) -> Iterator[AmdGpu]:
    gpu: int | None = None
    values: dict[str, str] = {}
    lines: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if said := _GPU.fullmatch(line):
            if gpu is not None:
                yield AmdGpu(gpu, values, lines)
            gpu, values, lines, above = int(said["gpu"]), {}, {}, []
        elif gpu is not None and (key := _KEY.fullmatch(line)):
            depth = len(key["indent"])
            if not depth:  # CPU: 0
                yield AmdGpu(gpu, values, lines)
                gpu = None
                continue
            above = [each for each in above if each[0] < depth] + [(depth, key["key"].strip())]
            if key["value"]:
                path = ".".join(name for _, name in above)
                values[path], lines[path] = key["value"], line.strip()
    if gpu is not None:
        yield AmdGpu(gpu, values, lines)


def _loads(tool: str, text: str) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{tool} printed JSON that cannot be read: {error}") from None


def _of_json(text: str) -> Iterator[AmdGpu]:
    whole = _loads("amd-smi", text)
    listed = whole.get("gpu_data") if isinstance(whole, dict) else whole
    if not isinstance(listed, list) or not all(isinstance(gpu, dict) for gpu in listed):
        raise ToolError("amd-smi printed JSON without a list of GPUs")
    for gpu in listed:
        if isinstance(gpu.get("gpu"), int):
            values = dict(_flat(gpu, ""))
            yield AmdGpu(gpu["gpu"], values, {path: path.rpartition(".")[2].lower() for path in values})


def _flat(node: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        path = f"{above}{key.upper()}"
        if isinstance(value, dict) and value.keys() >= {"value"}:
            yield path, f"{value['value']} {value.get('unit', '')}".strip()
        elif isinstance(value, dict):
            yield from _flat(value, f"{path}.")
        else:
            yield path, str(value)


def parse_rocm(text: str) -> tuple[AmdGpu, ...]:
    """The GPUs of ``rocm-smi``, under the paths of ``amd-smi``.

    Raises
    ------
    ToolError
        If its JSON cannot be read.
    """
    values: dict[int, dict[str, str]] = {}
    lines: dict[int, dict[str, str]] = {}

    def keep(gpu: int, path: str, value: str, line: str) -> None:
        values.setdefault(gpu, {})[path] = value
        lines.setdefault(gpu, {})[path] = line

    for gpu, key, value, line in _rocm(text):
        if path := _ROCM_PATHS.get(key):
            keep(gpu, path, value, line)
        else:
            values.setdefault(gpu, {})
            lines.setdefault(gpu, {})
            if key.startswith("RAS "):
                block, kind = key.removeprefix("RAS ").split(".")
                keep(gpu, f"ECC_BLOCKS.{block}.{kind}", value, line)
    return tuple(AmdGpu(gpu, values[gpu], lines[gpu]) for gpu in sorted(values))


_ROCM_PATHS = {
    "PCIe Replay Count": "PCIE.REPLAY_COUNT",
    "XGMI Error count": "XGMI.ERROR",
    "Max Graphics Package Power (W)": "LIMIT.POWER_CAP",
    "power cap": "LIMIT.POWER_CAP",
}


def _rocm(text: str) -> Iterator[tuple[int, str, str, str]]:
    if text.lstrip().startswith("{"):
        for card, said in _loads("rocm-smi", text).items():
            if (number := re.fullmatch(r"card(\d+)", card)) and isinstance(said, dict):
                yield from ((int(number[1]), key, str(value), f'"{key}": "{value}"') for key, value in said.items())
        return
    ras: int | None = None
    for line in text.splitlines():
        if begins := _ROCM_RAS.fullmatch(line.strip()):
            ras = int(begins["gpu"])
        elif said := _ROCM_LINE.fullmatch(line.strip()):
            yield int(said["gpu"]), said["key"].strip(), said["value"], line.strip()
        elif row := _ROCM_ROW.fullmatch(line.strip()):
            yield int(row["gpu"]), "power cap", f"{row['cap']} W", line.strip()
        elif ras is not None and (block := _ROCM_BLOCK.fullmatch(line)):
            yield ras, f"RAS {block['block']}.CORRECTABLE_COUNT", block["correctable"], line.strip()
            yield ras, f"RAS {block['block']}.UNCORRECTABLE_COUNT", block["uncorrectable"], line.strip()
