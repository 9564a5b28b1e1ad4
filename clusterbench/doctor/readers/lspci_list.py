"""The list of PCIe devices, as ``lspci``, ``lspci -nn``, ``lspci -nnk`` or ``lspci -tv`` print it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import lspci
from clusterbench.words import plural

_TREE = re.compile(r"\s*[-+\\]?[-+\\]?-?\[[0-9a-f]{4}(?:[0-9a-f]{4})?(?::[0-9a-f]{2}|-[0-9a-f]{2})?\]-.*")
_LEAF = re.compile(r"-([0-9a-f]{2}\.[0-7])  (\S.*)")
_DEVICE = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z\d][^:]+: .+")
_OF_DEVICE = re.compile(r"\s+(?:Subsystem|Kernel driver in use|Kernel modules|DeviceName): ")
"""Below a device by ``-k``."""
_NOT_GPU = re.compile(r"(?i)audio|bridge|switch|USB|UCSI|serial bus|Device (?:1af1|22a3)\b")
_BOARDS = ((re.compile(r"1af1\b|A100 NVSwitch"), 6, "HGX A100"), (re.compile(r"22a3\b|H100 NVSwitch"), 4, "HGX H100"))
"""NVSwitches for each eight GPUs of a board; NVIDIA's data sheets of HGX A100 and HGX H100."""
_BOARD = 8


class LspciList(HostText):
    """GPUs and NVSwitches that fell off the bus, or are fewer than their board has.

    What a device answers when it is gone is all ones: revision ``ff``. How many GPUs a host should have is known where
    it shows NVSwitches: six for eight A100, four for eight H100.
    """

    kind = "lspci"

    def holds(self, text: str) -> bool:
        lines = [line for line in text.splitlines() if line.strip() and not _OF_DEVICE.match(line)]
        tree = any(map(_TREE.fullmatch, lines))
        return tree or (not lspci.is_lspci(text) and 2 * sum(map(bool, map(_DEVICE.fullmatch, lines))) > len(lines))

    def read(self, text: str, name: str) -> Said:
        lines = [line.strip() for line in text.splitlines() if "NVIDIA" in line and not _OF_DEVICE.match(line)]
        if _is_cut_tree(text):
            rest = NotJudged("gpu_count", (name,), "the tree ends before its last branch", "the whole output")
            return Said(not_judged=(rest,), hosts=(name,))
        gpus = [line for line in lines if not _NOT_GPU.search(_words(line))]
        if found := (*_gone(text.splitlines(), name), *_of_board(gpus, lines, name)):
            return Said(found=found, hosts=(name,))
        healthy, unknown = [], []
        switches = {board: sum(bool(mark.search(line)) for line in lines) for mark, _, board in _BOARDS}
        if board := next((board for board, number in switches.items() if number), ""):
            what = f"{plural(len(gpus), 'GPU')} and {switches[board]} NVSwitches, as {board} has them"
            healthy.append(Healthy("gpu_count", (name,), what))
        else:
            seen = f"{plural(len(gpus), 'GPU')} on the bus" if gpus else "no GPU with a name"
            why = f"{seen}, and nothing says how many there should be"
            unknown.append(NotJudged("gpu_count", (name,), why, "nvidia-smi -q, and lspci -vvv as root for the links"))
        return Said(healthy=tuple(healthy), not_judged=tuple(unknown), hosts=(name,))


def _is_cut_tree(text: str) -> bool:
    """Whether a tree of several roots lacks the last, which hangs on a backslash."""
    roots = [line.strip() for line in text.splitlines() if _TREE.fullmatch(line)]
    return bool(roots) and roots[0].startswith("-+-") and not roots[-1].startswith("\\-")


def _words(line: str) -> str:
    """A device's kind and name, without its place."""
    leaf = _LEAF.search(line)
    return leaf[2] if leaf else line


def _gone(lines: Sequence[str], name: str) -> Iterator[Found]:
    for line in map(str.strip, lines):
        if "(rev ff)" in line:
            what = "answers nothing but ones (revision ff): it fell off the bus"
            fix = "Xids in the kernel's log say when; power the host off and on; if it comes back, replace the card"
            where, evidence = line.split(" ", 1)[0], f"{name}: {line}"
            check = "gpu_lost" if "NVIDIA" in line else "device_lost"
            yield Found(check, "error", (name,), where, what, evidence, "lspci -vv; nvidia-smi", fix)


def _of_board(gpus: Sequence[str], lines: Sequence[str], name: str) -> Iterator[Found]:
    for mark, per_board, board in _BOARDS:
        switches = [line for line in lines if mark.search(line)]
        boards = max(-(-len(switches) // per_board), -(-len(gpus) // _BOARD)) if switches and gpus else 0
        for said, number, word in ((gpus, _BOARD * boards, "GPU"), (switches, per_board * boards, "NVSwitch")):
            if len(said) < number:
                words = plural(len(said), word, f"{word}es" if word == "NVSwitch" else "")
                what = f"the bus shows {words}; {board} has {number}, unless the text is cut"
                fix = "Xids and PCIe errors in the kernel's log; power the host off and on; if it stays so, replace it"
                yield Found("gpu_count", "error", (name,), "", what, f"{name}: {(said or lines)[-1]}", "lspci", fix)
