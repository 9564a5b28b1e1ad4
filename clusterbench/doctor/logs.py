"""What files say that people have at hand: recognised by their content, and judged by the checks that hosts are.

Only what a file tells of is judged: a list of ports says nothing of memory.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

from clusterbench.checks import HostCheck, checks
from clusterbench.checks._kernel_log import KernelLogCheck
from clusterbench.doctor import Examination, Found, Healthy, NotJudged, examine, nccl_log, torch_log
from clusterbench.doctor.files import hosts_by_folder
from clusterbench.doctor.readers import readers
from clusterbench.doctor.said import File, Reader, Said, apart
from clusterbench.errors import SuiteError, ToolError
from clusterbench.facts import Host, name_of
from clusterbench.facts.kernel_log import KernelLog
from clusterbench.text_files import log_text
from clusterbench.tools import kernel_log
from clusterbench.tools._prefix import PlainLine, num_left_out
from clusterbench.types import SEVERITIES
from clusterbench.words import plural

_MOST_QUOTED = 120
_MOST_OF_A_PLACE = 400


def examine_logs(paths: Sequence[Path]) -> tuple[Examination, list[str]]:
    """What the files say, and of each file what it was taken for.

    Raises
    ------
    SuiteError
        If one cannot be read, or holds nothing that is known.
    """
    said: list[tuple[File, str, Said]] = []
    taken: list[str] = []
    kind_of: dict[str, str] = {}
    hosts = hosts_by_folder(paths)
    files = [
        File.of(str(path) if host else path.name, log_text(path), host) for path, host in zip(paths, hosts, strict=True)
    ]
    for path, file in zip(paths, files, strict=True):
        kinds: list[str] = []
        refused: dict[str, str] = {}
        for reader in READERS:
            try:
                of_hosts = reader.read(file)
            except ToolError as error:
                refused[reader.kind] = str(error)
                continue
            said += [(file, *each) for each in of_hosts]
            kind_of |= {host: reader.kind for host, _ in of_hosts}
            kinds += [reader.kind] if of_hosts else []
        if refused and not kinds:
            raise SuiteError(f"{path}: " + "; ".join(f"read as {kind}: {why}" for kind, why in refused.items()))
        takes = "the whole output, in a file of its own"
        parts = tuple(NotJudged(kind, (file.host,), why, takes) for kind, why in refused.items())
        said += [(file, file.host, Said(not_judged=parts))] if parts else []
        if not kinds and not any(line.text.strip() for line in file.lines):
            raise SuiteError(f"{path} is empty, so there is nothing to judge.")
        if not kinds:
            known = ", ".join(reader.kind for reader in READERS)
            first = next(line.text.strip() for line in file.lines if line.text.strip())
            raise SuiteError(
                f"{path}: nothing in it is known; it begins {first[:80]!r}.\n"
                f"hint: what can be read: {known}; for a table of a benchmark: clusterbench import"
            )
        taken.append(f"{path}: {' and '.join(kinds)}")
    examination = _together(said)
    return replace(examination, not_judged=(*examination.not_judged, *_silent(examination, kind_of))), taken


def _silent(examination: Examination, kind_of: Mapping[str, str]) -> Iterator[NotJudged]:
    """Hosts of whose text no check says a word, and what it was read as."""
    parts: tuple[Found | Healthy | NotJudged, ...] = (*examination.found, *examination.healthy, *examination.not_judged)
    if not all(part.hosts for part in parts):
        return  # what is said of no host in particular is said of all
    told = {host for part in parts for host in part.hosts}
    for host in examination.hosts:
        if host not in told and host in kind_of:
            why = f"{kind_of[host]} says nothing here that a check judges"
            yield NotJudged(kind_of[host], (host,), why, "the whole output")


def _together(said: Sequence[tuple[File, str, Said]]) -> Examination:
    """What files say of hosts, each finding with the line of its own file that says it.

    Where the same is said of a host again, each is judged, under the host's one name.
    """
    hosts: dict[str, dict[str, Any]] = {}
    asked: dict[str, dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
    called: dict[str, str] = {}
    for file, host, each in said:
        name = _free(host, [name_of(type(fact)) for fact in each.facts], hosts)
        called[name] = host
        for fact in each.facts:
            hosts.setdefault(name, {})[name_of(type(fact))] = json.loads(json.dumps(asdict(fact)))
        for check in each.checks:
            asked[check][name].append(file)
    judged = {}
    for check, files in asked.items():
        kind = checks()[check]
        names = [*files]
        of_several = not issubclass(kind, HostCheck)
        if of_several:  # the first word on each host: programs name one thing differently
            names = [*{called[name]: name for name in reversed(names)}.values()][::-1]
        if len(names) > 1 or not of_several:
            judged[check] = kind().judge_all([Host(name, {"facts": hosts[name]}) for name in names])
    examination = examine([*hosts], judged)
    by_checks = zip(examination.found, _of(examination.found, called), strict=True)
    found = (
        *(_with_line(named, asked[each.name][each.hosts[0]]) for each, named in by_checks),
        *(_with_line(found, [file]) for file, _, each in said for found in each.found),
    )
    named = [*map(called.__getitem__, hosts), *(host for *_, each in said for host in each.hosts)]
    return replace(
        examination,
        hosts=tuple(dict.fromkeys(named)),
        found=tuple(sorted(dict.fromkeys(found), key=lambda each: SEVERITIES.index(each.severity))),
        healthy=(*_of(examination.healthy, called), *(healthy for *_, each in said for healthy in each.healthy)),
        not_judged=(*_of(examination.not_judged, called), *(part for *_, each in said for part in each.not_judged)),
    )


_Part = TypeVar("_Part", Found, Healthy, NotJudged)


def _of(parts: Sequence[_Part], called: Mapping[str, str]) -> list[_Part]:
    """Parts of an examination under the names that hosts have for people."""
    return [replace(part, hosts=tuple(dict.fromkeys(called.get(host, host) for host in part.hosts))) for part in parts]


def _free(host: str, facts: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """A name under which nothing of the same kind is told yet."""
    names = chain([host], (f"{host} ({number})" for number in count(2)))
    return next(name for name in names if not {*facts} & {*hosts.get(name, ())})


def _with_line(found: Found, files: Sequence[File]) -> Found:
    """With the file and the line that say it: one of those it was read from, and of the host's lines there.

    Checks quote the host's file; here a program's output stands for it.
    """
    if any(re.match(rf"{re.escape(file.name)}:\d+: ", found.evidence) for file in files):
        return found
    names = [*found.hosts, *(file.name for file in files)]
    quote = next((found.evidence[len(name) + 2 :] for name in names if found.evidence.startswith(f"{name}: ")), None)
    of_host = quote is None and found.evidence.startswith(("/", "NVML "))
    words = found.evidence if quote is None else quote
    between = ", in the words of " if of_host else ": "
    for file in files:
        own = [line for host in found.hosts for line in file.by_host.get(host, ())]
        for lines in (own,) if own and file.host not in found.hosts else (own, file.lines):
            behind = _behind(found.where, lines)
            number = None if of_host else _line_with(words[:_MOST_QUOTED], behind, lines)
            if number is None and (quote is not None or of_host):
                number = _line_of("" if of_host else words.partition(":")[0], behind or _behind(_first(words), lines))
            if number is not None:
                return replace(found, evidence=f"{file.name}:{number}{between}{words}")
    return replace(found, evidence=f"{found.hosts[0]}{between}{words}") if of_host else found


def _line_with(words: str, *places: Sequence[PlainLine]) -> int | None:
    return next((line.number for line in chain(*places) if words in line.text), None) if words else None


def _behind(where: str, lines: Sequence[PlainLine]) -> Sequence[PlainLine]:
    """The line that names a place and those behind it; none where no line does."""
    address = re.search(r"(?:(?!0000:)[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", where)
    place = address[0] if address else where.partition(" port ")[0]
    # JSON writes a tab as two letters, and nvidia-smi four more zeros before a domain.
    named = re.compile(rf"(?:(?<!\w)|(?<=\\t)|(?<!\w)0000){re.escape(place)}(?!\w)", re.IGNORECASE)
    small = place.lower()
    naming = (index for index, line in enumerate(lines) if small in line.text.lower() and named.search(line.text))
    first = next(naming, None) if place else None
    return lines[first : first + _MOST_OF_A_PLACE] if first is not None else ()


def _first(words: str) -> str:
    """Of a list of names, as a check of RDMA devices quotes a folder, the first."""
    names = re.match(r"/\S+: (\w+)(?:, |; )", words)
    return names[1] if names else ""


def _line_of(key: str, behind: Sequence[PlainLine]) -> int | None:
    """The first line that begins with a key, or the one that names the place."""
    first = behind[0].number if behind else None
    return next((line.number for line in behind if key and line.text.strip().startswith(key)), first)


def _of_kernel_logs() -> tuple[str, ...]:
    return tuple(name for name, kind in checks().items() if issubclass(kind, KernelLogCheck))


def _kernel(file: File) -> list[tuple[str, Said]]:
    if not kernel_log.is_kernel_log(file.text, file.plain):
        return []
    hosts: dict[str, list[kernel_log.Line]] = defaultdict(list)
    for line in kernel_log.lines_of(file.lines):
        hosts[line.host].append(line)
    if len(hosts) > 1 and not any(kernel_log.is_kernel_log(line.text) for line in hosts.get("", ())):
        hosts.pop("", None)  # what stands around the lines of hosts
    kernels = _with_kernel_lines(file) if len(hosts) > 1 else {*hosts}
    return [
        _kernel_of(host, file.name, lines) if origin in kernels else (host, _no_kernel_of(host))
        for origin, lines in hosts.items()
        for host in file.named(origin, hosts)
    ]


def _with_kernel_lines(file: File) -> set[str]:
    """Whose lines are the kernel's, at least one: those of sshd alone, in syslog, tell nothing of a GPU's health."""
    whole = file.text.split("\n")
    of_origin: dict[str, list[str]] = defaultdict(list)
    for line in file.lines:
        of_origin[line.origin].append(whole[line.number - 1])
    return {origin for origin, lines in of_origin.items() if kernel_log.is_kernel_log("\n".join(lines))}


def _no_kernel_of(host: str) -> Said:
    why = "none of its lines in the text is the kernel's"
    return Said(not_judged=(NotJudged("a kernel's log", (host,), why, "dmesg -T, journalctl -k"),), hosts=(host,))


_MISMATCH = re.compile(r"NVRM: API mismatch: the client.*? has the version (\d[\d.]*\d).*")


def _kernel_of(host: str, source: str, lines: list[kernel_log.Line]) -> tuple[str, Said]:
    mismatches = [match for line in lines if (match := _MISMATCH.search(line.text))]
    facts = KernelLog.of(lines, source)
    if not mismatches:
        return host, Said((facts,), _of_kernel_logs())
    first = mismatches[0]
    what = f"programs have NVIDIA's libraries {first[1]}, and the kernel's module is of another version: no GPU answers"
    fix = "reboot, or load the module of the libraries' version; in a container: those of the host's driver"
    confirm = "cat /proc/driver/nvidia/version; nvidia-smi"
    found = Found("driver_mismatch", "error", (host,), "", what, f"{source}: {first[0]}", confirm, fix)
    return host, Said((facts,), _of_kernel_logs(), (found,))


def _nccl(file: File) -> list[tuple[str, Said]]:
    """Its lines name their host themselves, and it takes those of all ranks to tell who is joined with whom."""
    text = file.text_of(file.lines)
    if "NCCL INFO" not in text and "NCCL WARN" not in text:
        return []
    said = nccl_log.judge(text if text.endswith("\n") else f"{text}\n", file.name)
    hosts = said.hosts or (file.host,)
    found = tuple(replace(each, hosts=each.hosts or hosts) for each in said.found)
    unknown = (*said.not_judged, *_left_out(file.text, hosts))
    return [(file.host, Said(found=found, healthy=said.healthy, not_judged=unknown, hosts=hosts))]


def _left_out(text: str, hosts: tuple[str, ...]) -> Iterator[NotJudged]:
    if number := num_left_out(text):
        why = f"Ray left out {plural(number, 'line')} that other workers wrote, as like others"
        yield NotJudged("ways", hosts, why, "a log of a job with RAY_DEDUP_LOGS=0")


READERS = (
    Reader("a kernel's log", _kernel),
    Reader("NCCL's log", _nccl),
    Reader("PyTorch's log", torch_log.read),
    *(apart(reader.kind, reader.holds, reader.read) for reader in readers()),
)
"""What can be read, in the order in which a file is tried; one may hold several."""
