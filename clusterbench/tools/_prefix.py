"""What launchers and log collectors put before a program's line, so that its own words can be read behind them.

Ray's actor, kubectl's pod and Docker Compose's container, the rank of torchrun, mpirun and srun, the host of pdsh, and
the time of a container runtime, syslog or Python's logging; several may stand behind each other.
"""

from __future__ import annotations

import re

_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
_LAUNCHER = (
    r"\[[^\]\s]+\]<std(?:out|err|diag)> ?: ?",  # mpirun -tag-output: [1,0]<stdout>:
    r"\[(?:rank|default)\d+\]: ?",  # torch; torchrun --tee
    r"\d+: ",  # srun --label
    r"\([A-Za-z_][\w.]* (?:rank=\d+[, ]+)?pid=\d+(?:, ip=[^)\s]+)?\) ",  # Ray
    r"\[pod/[^\]\s]+\] ",  # kubectl logs --prefix
    r"[\w.-]+ +\| ",  # Docker Compose
    rf"\d{{4}}-\d\d-\d\dT{_TIME}(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?",  # kubectl --timestamps, containerd
)
_LOGGER = (
    r"\[\d+\] ",  # mpirun of MPICH -prepend-rank
    rf"\[?\d{{4}}-\d\d-\d\d[T ]{_TIME}(?:[+-]\d{{4}})?\]? (?:- )?",  # Python's logging
    rf"{_LEVEL} \d\d-\d\d {_TIME} (?:\[[^\]]+\] )?",  # vLLM
    rf"(?:[\w.]+ - )?\[?{_LEVEL}\]?:? (?:- )?(?!\d\d-\d\d )",  # Python's logging: level, with a logger's name
    rf"[A-Z][a-z]{{2}} [ \d]\d {_TIME} [\w.-]+ [\w./-]+(?:\[\d+\])?: ",  # syslog
    rf"(?!{_LEVEL}: |\d+: )[\w-]+(?:\.[\w-]+)*: (?=\S)",  # pdsh, clush
)
LAUNCHER = rf"\s*(?:{'|'.join(_LAUNCHER)})+"
"""A pattern for what stands before each line of a program, where its own lines may begin with any word."""

AHEAD = rf"\s*(?:(?:{'|'.join((*_LAUNCHER, *_LOGGER))}) *)*?"
"""A pattern for all of it, as little as the rest of the line leaves over: where that rest is known by its form."""

_LAUNCHER_OF_LINE = re.compile(LAUNCHER)


def without_launcher(line: str) -> str:
    """A line as its program wrote it; one without a prefix stays as it is.

    >>> without_launcher("  [1,0]<stdout>:  8 9.5"), without_launcher("[pod/w-0/main]  8 9.5")
    (' 8 9.5', ' 8 9.5')
    >>> without_launcher(" 8 9.5")
    ' 8 9.5'
    """
    match = _LAUNCHER_OF_LINE.match(line)
    return line[match.end() :] if match else line
