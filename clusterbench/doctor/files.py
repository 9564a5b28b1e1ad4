"""The host that a folder is named after, where hosts have folders of files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path


def hosts_by_folder(paths: Sequence[Path]) -> list[str]:
    """Of each file the host that its folder is named after, or nothing: hosts have folders where names of files recur.

    >>> hosts_by_folder([Path("cb01/ibstat.txt"), Path("cb02/ibstat.txt"), Path("cb02/dmesg.txt"), Path("nccl.log")])
    ['cb01', 'cb02', 'cb02', '']
    >>> hosts_by_folder([Path("cb01/logs/dmesg.txt"), Path("cb02/logs/dmesg.txt")])
    ['cb01', 'cb02']
    """
    folders = [Path(os.path.abspath(path)).parent for path in paths]
    by_name: dict[str, set[Path]] = defaultdict(set)
    for path, folder in zip(paths, folders, strict=True):
        by_name[path.name].add(folder)
    hosts = _apart({folder for alike in by_name.values() if len(alike) > 1 for folder in alike})
    return [hosts.get(folder, "") for folder in folders]


def _apart(folders: Collection[Path]) -> Mapping[Path, str]:
    """Names that tell folders apart: without the end that all share, and of as few parts as do."""
    parts = {folder: folder.parts for folder in folders}
    while parts and len({each[-1] for each in parts.values()}) == 1 and min(map(len, parts.values())) > 1:
        parts = {folder: each[:-1] for folder, each in parts.items()}
    depth = 1
    while len({each[-depth:] for each in parts.values()}) < len(parts):
        depth += 1
    return {folder: "/".join(each[-depth:]) for folder, each in parts.items()}
