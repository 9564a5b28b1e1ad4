"""What launchers and log collectors put before a program's line, so that its own words can be read behind them.

Ray's actor, kubectl's pod and Docker Compose's container, the rank of torchrun, mpirun and srun, the host of pdsh, and
the time of a container runtime, syslog, CloudWatch or Python's logging; several may stand behind each other. Before all
of them a text that was copied may have the blanks of Markdown's code, or a mark that it is quoted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent
from typing import NamedTuple

_DAY, _CLOCK, _FRACTION = r"\d{4}[-/]\d\d[-/]\d\d", r"\d\d:\d\d:\d\d", r"(?:[.,]\d+)?"
_NAMED_DAY = r"[^\W\d_]{2,4}\.?"  # month or day of the week, in any language
_SYSLOG_TIME = rf"(?P<time>{_NAMED_DAY} [ \d]\d {_CLOCK})"
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
_REMARK = r"[Ee]rror|[Ww]arning|[Nn]ote|[Hh]int"
_PROGRAM = rf"(?!(?:{_REMARK}): )[A-Za-z][\w./@()-]*(?:\[\d+\])?: "
_NO_HOST = (
    rf"(?!{_LEVEL}: |[\w.]*(?:Error|Exception|Warning|Interrupt|Exit): |\d+: |Traceback|FATAL: |PANIC: "
    rf"|CPU\d+: |(?:NVRM|ACPI|PCI|DMAR|mce|rcu|nfs|watchdog|random|systemd|audit|EXT4-fs|XFS"
    rf"|Lustre\w*|Total|BUG|Oops|ibpanic|ibwarn|ibstat|{_REMARK}): )"
)
"""Words before a colon that programs and the kernel begin lines with."""
_SURE, _HALF, _MOST, _ALL = 0.05, 0.5, 0.8, 1.0


@dataclass(frozen=True)
class _Form:
    """One way to begin lines: it counts where at least this ``share`` of a text's lines begin so.

    Its groups are ``host``, ``rank`` or ``pid`` (whose line it is) and ``time``.
    """

    pattern: str
    share: float

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(rf" *{self.pattern}")

    def match(self, line: str) -> re.Match[str] | None:
        return self.compiled.match(_ended(line))


def _ended(line: str) -> str:
    """A line that is empty behind its prefix often lost the blank at its end."""
    return line if line[-1:] == " " else f"{line} "


def _padded(width: int) -> str:
    """Levels filled up with blanks, and one behind."""
    return "|".join(f"{level:<{width}} " for level in ("DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL"))


_LAUNCHERS = (
    _Form(r"[>│┃] ?", _MOST),  # quoted, or copied with the frame of a terminal's window
    _Form(r"\[(?:[^\]\s]*[,@])?(?:mpirank:)?(?P<rank>\d+)(?:,algo-\d+)?\]<std(?:out|err|diag)> ?: ?",
          _SURE),  # mpirun -tag-output, also SageMaker's
    _Form(r"\[(?:rank|default)(?P<rank>\d+)\]: ?", _SURE),  # torch; torchrun --tee
    _Form(r"\[rank: (?P<rank>\d+)\] ", _SURE),  # Lightning
    _Form(r"[a-z][\w-]*/(?P<rank>\d+) ", _MOST),  # TorchX
    _Form(r"\((?:[A-Za-z_][\w.-]*,? )?(?:rank=\d+[, ]+)?pid=(?P<pid>\d+)(?:, ip=(?P<host>[^)\s]+))?\) "
          r"(?:\[repeated \d+x across cluster\] )?", _SURE),  # Ray, SkyPilot
    _Form(r"\[pod/(?P<host>[^\]\s/]+)[^\]\s]*\] ", _SURE),  # kubectl logs --prefix
    _Form(rf"(?P<time>{_DAY}T{_CLOCK}){_FRACTION}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ", _SURE),  # containerd
    _Form(rf"(?P<time>{_DAY}T{_CLOCK})\.\d{{6}}Z [0-9a-f]{{2}}[OE][+ ]", _SURE),  # GitLab
    _Form(rf"(?P<time>{_DAY}T{_CLOCK})\.\d{{7,9}}Z ", _SURE),  # kubectl --timestamps
    _Form(rf"(?!{_LEVEL} )(?:[\w.-]+@)?(?P<host>[\w.-]+) +\| ", _MOST),  # Docker Compose; docker service logs
    _Form(r"\[(?!(?:gpu|cuda|rank|nic|port|link|numa|device|step)-\d)(?P<host>(?=[a-z-]*\d)[a-z0-9]+(?:-[a-z0-9]+)+)"
          r"(?: [a-z][a-z0-9-]*)?\] ", _MOST),  # kubetail
    _Form(r"(?P<rank>\d+): ", _MOST),  # srun --label
)  # fmt: skip
_TIME_AND_LEVEL = _Form(rf"\[?(?P<time>{_DAY}[T ]{_CLOCK}){_FRACTION}\]?(?::{_LEVEL}:|\[{_LEVEL}\]) ?", _SURE)
_ANY_LEVEL = _Form(
    rf"(?:[\w.]+ (?:- )?)?\[?{_LEVEL}\]?(?: in [\w.]+)?:? (?:\[[\w./-]+:\d+(?::[^\]]+)?\] |\[[A-Za-z_][\w.]*\] )?"
    r"(?!\d\d-\d\d )",
    _MOST,
)
_LOGGERS = (
    _Form(rf"(?:<\d+>)?{_SYSLOG_TIME}(?:\.\d+)? (?P<host>[\w.-]+) {_PROGRAM}", _MOST),  # syslog
    _Form(rf"<\d+>1 (?P<time>{_DAY}T{_CLOCK})(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?P<host>[\w.-]+) \S+ \S+ \S+ "
          r"(?:-|\[[^\]]*\]) ", _SURE),  # RFC 5424
    _Form(rf"{_NAMED_DAY} (?P<time>{_DAY} {_CLOCK})(?:\.\d+)? [\w+:-]+ (?P<host>[\w.-]+) {_PROGRAM}",
          _MOST),  # journalctl -o short-full
    _Form(
        rf"(?P<time>{_DAY}T{_CLOCK})(?:\.\d+)?[+-]\d\d:?\d\d (?P<host>[\w.-]+) {_PROGRAM}", _HALF
    ),  # rsyslog, journal
    _Form(rf"(?P<time>{_DAY}T{_CLOCK})(?:\.\d+)?Z (?P<host>[\w.-]+) (?:kernel|[\w./-]+\[\d+\]): ", _SURE),
    _Form(rf"\| *(?P<time>{_DAY}T{_CLOCK}){_FRACTION}(?:Z|[+-]\d\d:\d\d) *\| ?", _SURE),  # CloudWatch
    _Form(rf"\[(?P<time>{_DAY} {_CLOCK}),\d+\]\[[\w.]+\]\[{_LEVEL}\] - ", _SURE),  # Hydra
    _TIME_AND_LEVEL,
    _Form(rf"\[NeMo [DIWEC] (?P<time>{_DAY} {_CLOCK}) [^\]\s]+:\d+\] ", _SURE),
    _Form(rf"[IWEF]\d{{4}} (?P<time>{_CLOCK})\.\d+ +\d+ [^\]\s]+:\d+\] ", _SURE),  # glog, absl, klog
    _Form(rf"\[(?P<time>\d\d/\d\d/\d\d {_CLOCK})\] ", _SURE),  # rich
    _Form(
        rf"\[?(?P<time>{_DAY}[T ]{_CLOCK}){_FRACTION}(?:Z| ?[+-]\d\d:?\d\d)?\]?:?[ \t](?:- ++|\| ++(?={_LEVEL}))?",
        _SURE,
    ),
    _Form(rf"{_SYSLOG_TIME} (?!\d{{4}}\b(?!:))", _SURE),  # ts of moreutils
    _Form(rf"{_NAMED_DAY} (?P<time>{_NAMED_DAY} [ \d]\d {_CLOCK} \d{{4}}) ", _MOST),  # iperf3 --timestamps; ts %c
    _Form(rf"(?P<time>\d\d/\d\d/\d{{4}} {_CLOCK}) - {_LEVEL} +- [\w.]+ - ", _SURE),  # examples of Transformers
    _Form(rf"{_LEVEL} \d\d-\d\d {_CLOCK} (?:\[[^\]]+\] )?", _SURE),  # vLLM
    _Form(rf"{_LEVEL}:[\w.]+:", _MOST),  # Python's logging, unconfigured
    _Form(rf"(?:[\w.]+ (?:- )?)?\[?{_LEVEL}\]?:?(?: *- | +\| [\w.<>]+:[\w.<>]+:\d+ - )", _MOST),  # loguru
    *(_Form(rf"(?:[\w.]+ )?(?:{_padded(width)})(?!\d\d-\d\d )", _ALL) for width in (8, 7, 5)),  # rich aligns them
    _ANY_LEVEL,
    _Form(r"\[(?P<rank>\d+)\] ", _MOST),  # mpirun of MPICH -prepend-rank
    _Form(rf"(?:\[{_CLOCK}{_FRACTION}\] |{_CLOCK}(?:  |{_FRACTION} ))", _MOST),  # Jenkins
    _Form(r"(?=[a-z-]*\d)(?P<host>[a-z0-9]+(?:-[a-z0-9]+)+) [a-z][a-z0-9-]* ", _MOST),  # stern
)  # fmt: skip
_HOST = _Form(rf"(?<! ){_NO_HOST}(?P<host>[\w-]+(?:\.[\w-]+)*): (?! *\d+ *$)", _MOST)
"""pdsh, clush: any word; so only outside of all that loggers write, and before more than a counter's value."""
_WORD = re.compile(rf"{_NO_HOST}[\w-]+(?:\.[\w-]+)*: ")
_NUMBER = re.compile(r" *(?P<host>[\w-]+(?:\.[\w-]+)*): (?P<rest> *\d+ *)")


def _nameless(forms: Sequence[_Form]) -> list[str]:
    return [re.sub(r"\?P<\w+>", "?:", form.pattern) for form in forms]


_ANY_SURE = re.compile(
    rf" *(?:{'|'.join(_nameless([form for form in (*_LAUNCHERS, *_LOGGERS) if form.share == _SURE]))})"
)
"""Where fewer lines than they ask for begin with any of them, none of them is there."""

_HOST_AHEAD = rf"{_NO_HOST}[\w-]+(?:\.[\w-]+)*: (?=\S)"
LAUNCHER = rf"\s*(?:{'|'.join(_nameless(_LAUNCHERS))})+"
"""A pattern for what stands before each line of a program, where its own lines may begin with any word."""

AHEAD = rf"\s*(?:(?:{'|'.join((*_nameless((*_LAUNCHERS, *_LOGGERS)), _HOST_AHEAD))}) *)*?"
"""A pattern for all of it, as little as the rest of the line leaves over: where that rest is known by its form."""

_NAME = r"[\w-]+(?:\.[\w-]+)*"
_HEADER = re.compile(
    rf"(?P<ansible>{_NAME}) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE!)(?: \| rc=\d+)? (?:>>|=> \{{) *"
    rf"|\[\d+\] {_CLOCK} \[(?:SUCCESS|FAILURE)\] (?:\S+@)?(?P<pssh>{_NAME})(?:[: ].*)?"
    r"|==> (?P<tail>\S+) <=="
    r"|(?P<marks>={2,8}) (?P<loop>\S+) (?P=marks)"
)
"""Lines above the output of a host. What a loop of the shell writes, programs write above a part of their own."""
_RULE = re.compile(r"-{16} *")
_GROUP = re.compile(r"[\w.-]+(?:\[[\d,-]+\][\w.-]*)?(?:,[\w.-]+(?:\[[\d,-]+\][\w.-]*)?)*")
_NUMBERED = re.compile(r"(?P<stem>[A-Za-z][\w-]*?)\d[\w-]*(?P<domain>(?:\.[\w-]+)*)")
_NO_STEM = re.compile(
    r"(?i)(?:cuda|gpu|cpu|rank|port|numa|socket|device|dev|disk|nvme|sd|mlx|hfi|bnxt|irdma|ib|eth|en|link|lane|slot|nic|hca"
    r"|test|step|run|iter|iteration|round|pass|phase|part|section|case|trial|epoch|loop|job|task|stage|config|size|v)[\w]*[_-]?"
)
"""What scripts number within a host."""

_LAUNCHER_OF_LINE = re.compile(LAUNCHER)
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_LEFT_OUT = re.compile(
    r"(?m) *\[repeated (?P<number>\d{1,9})x across cluster\](?: \(Ray deduplicates logs by default\..*)?$"
)
"""Behind a line; before one it stands with the worker's name."""
_MOST_LAYERS = 6
_MOST_SAMPLED = 2000


def without_launcher(line: str) -> str:
    """A line as its program wrote it; one without a prefix stays as it is.

    >>> without_launcher("  [1,0]<stdout>:  8 9.5"), without_launcher("[pod/w-0/main]  8 9.5")
    (' 8 9.5', ' 8 9.5')
    >>> without_launcher(" 8 9.5")
    ' 8 9.5'
    """
    match = _LAUNCHER_OF_LINE.match(line)
    return line[match.end() :] if match else line


def without_escapes(text: str) -> str:
    """A text without what sets colours and titles of terminals, and without Ray's word on lines that it left out.

    >>> without_escapes("\x1b[36ma line\x1b[0m [repeated 7x across cluster]")
    'a line'
    """
    plain = _ESCAPE.sub("", text)
    return _LEFT_OUT.sub("", plain) if "across cluster]" in plain else plain


def num_left_out(text: str) -> int:
    """How many lines Ray left out because they were like others: of other workers, with other numbers in them.

    >>> num_left_out("a line [repeated 7x across cluster]")
    7
    """
    return sum(int(match["number"]) for match in _LEFT_OUT.finditer(_ESCAPE.sub("", text)))


class PlainLine(NamedTuple):
    """A line as its program wrote it, and what stood before it.

    Attributes
    ----------
    number
        Its place in the text, from 1.
    origin
        Whose line it is: a host, pod or container, or with a blank within it ``rank 3``; empty where nothing says it.
    time
        As the prefix says it; empty where it says none.
    """

    number: int
    origin: str
    time: str
    text: str


def unwrapped(text: str) -> list[PlainLine]:
    r"""All lines of a text, without the prefixes that its lines share, or under the headers that name their hosts.

    What could be the program's own words is a prefix only where most lines have it.

    >>> [line[1:] for line in unwrapped("cb1: Port 1:\ncb2: \tState: Down\n")]
    [('cb1', '', 'Port 1:'), ('cb2', '', '\tState: Down'), ('', '', '')]
    """
    plain = without_escapes(text.removeprefix("\ufeff")).replace("\r\n", "\n")
    # script(1) keeps what a shell puts before the output of a command; web pages and chats have blanks of their own.
    plain = plain.replace("\n\r", "\n").replace("\xa0", " ")
    lines = dedent(plain).split("\n")
    has_margin = plain.lstrip("\n")[:1] != "\n".join(lines).lstrip("\n")[:1]
    layers = _layers([line for line in lines[:: 1 + len(lines) // _MOST_SAMPLED] if line.strip()], has_margin)
    within = [_without(PlainLine(number, "", "", line), layers) for number, line in enumerate(lines, 1)]
    if _HOST in layers:
        hosts = {line.origin for line in within}
        within = [_without_known(line, hosts) for line in within]
    return _under_headers(within)


def _under_headers(lines: list[PlainLine]) -> list[PlainLine]:
    """Lines of hosts one after the other, with the host that the header above them names; the headers are empty then.

    Known are those of dshbak, which may name several hosts (``cb[01-04]``), ansible, pssh, and of a loop of the shell
    where all names differ in numbers alone: ``== cb01 ==``.
    """
    if any(line.origin for line in lines):
        return lines
    heads: dict[int, str] = {}
    loop: dict[int, str] = {}
    for index, line in enumerate(lines):
        if line.text[:1] == "-" and index + 2 < len(lines) and _RULE.fullmatch(line.text):
            if _RULE.fullmatch(lines[index + 2].text) and _GROUP.fullmatch(lines[index + 1].text.strip()):
                heads |= dict.fromkeys(range(index, index + 3), lines[index + 1].text.strip())
        elif match := _HEADER.fullmatch(line.text):
            if host := match["ansible"] or match["pssh"]:
                heads[index] = host
            else:
                loop[index] = re.sub(r"\.(?:txt|log|out)$", "", match["tail"] or match["loop"])
    heads |= loop if _are_hosts(loop.values()) else {}
    if not heads:
        return lines
    under, host = [], ""
    for index, line in enumerate(lines):
        host = heads.get(index, host)
        under.append(line._replace(origin=host, text="" if index in heads else line.text))
    return under


def _are_hosts(names: Collection[str]) -> bool:
    """Whether names differ in numbers alone, as those of hosts do, and are of no parts of a host."""
    numbered = [_NUMBERED.fullmatch(name) for name in names]
    stems = {(match["stem"], match["domain"]) if match else ("", "") for match in numbered}
    return len({*names}) > 1 and len(stems) == 1 and not any(_NO_STEM.fullmatch(stem) or not stem for stem, _ in stems)


def plain_text(text: str) -> str:
    """A text without the prefixes that its lines share."""
    return "\n".join(line.text for line in unwrapped(text))


def _layers(sample: list[str], has_margin: bool) -> list[_Form]:
    """The prefixes of these lines from the outermost.

    What is left of lines that all had a margin begins with words of their own: ``ACSCtl:``, which is no host.
    """
    layers: list[_Form] = []
    while sample and len(layers) < _MOST_LAYERS:
        outside = not has_margin and all(layer in _LAUNCHERS for layer in layers)
        forms = (*_LAUNCHERS, *_LOGGERS, *((_HOST,) if outside else ()))
        ended = [*map(_ended, sample)]
        is_any_sure = _begin_with(_ANY_SURE, ended, _SURE)
        likely = (form for form in forms if is_any_sure or form.share != _SURE)
        found = next((form for form in likely if _begin_with(form.compiled, ended, form.share)), None)
        if found is None and layers and layers[-1] in (_TIME_AND_LEVEL, _ANY_LEVEL):
            found = _logger(sample)
        if found is None:
            break
        layers.append(found)
        sample = [rest for line in sample if (rest := _rest(found, line)).strip()]
    return layers


def _begin_with(pattern: re.Pattern[str], lines: Sequence[str], share: float) -> bool:
    """Whether at least this share of lines do; most patterns are given up after few of them."""
    left = len(lines) - math.ceil(share * len(lines))
    for line in lines:
        if not pattern.match(line):
            left -= 1
            if left < 0:
                return False
    return True


def _logger(sample: Sequence[str]) -> _Form | None:
    """The name of a logger behind its level, ``train.loop: ``: one word for most lines, before all that is theirs."""
    names = Counter(match[0] for line in sample if (match := _WORD.match(line)))
    form = _Form(f"(?<! ){re.escape(max(names, key=names.__getitem__))}", _MOST) if names else None
    return form if form and _begin_with(form.compiled, [*map(_ended, sample)], form.share) else None


def _rest(form: _Form, line: str) -> str:
    match = form.match(line)
    return line[match.end() :] if match else line


def _without(line: PlainLine, layers: Sequence[_Form]) -> PlainLine:
    number, origin, time, text = line
    for form in layers:
        if match := form.match(text):
            said = match.groupdict()
            origin = _origin(said, origin)
            time = said.get("time") or time
            text = text[match.end() :]
    return PlainLine(number, origin, time, text)


def _without_known(line: PlainLine, hosts: Collection[str]) -> PlainLine:
    """Without a host that other lines name, also before a number alone: the head of a matrix of one GPU."""
    match = _NUMBER.match(line.text)
    return line._replace(origin=match["host"], text=match["rest"]) if match and match["host"] in hosts else line


def _origin(said: dict[str, str | None], known: str) -> str:
    """A host is sharper than a rank, and what stands further in than what stands before it."""
    if host := said.get("host"):
        return host
    if known:
        return known
    return next((f"{word} {value}" for word in ("rank", "pid") if (value := said.get(word))), "")
