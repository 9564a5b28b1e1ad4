"""What asks a run to end: signals of people and of batch systems, and output that is not read any more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self, TextIO, cast

from clusterbench.errors import ClusterbenchError

ALWAYS = (signal.SIGTERM, signal.SIGINT)
UNLESS_TAKEN = (
    signal.SIGHUP,  # a terminal that was closed
    signal.SIGQUIT,
    signal.SIGUSR1,  # with the next, what batch systems send ahead of the end, as Slurm's --signal
    signal.SIGUSR2,
    signal.SIGXCPU,
    signal.SIGALRM,
)
"""Those for which a program that calls :func:`clusterbench.api.run` may have handlers of its own, which stay."""

Handler = Callable[[int, FrameType | None], None]


class Interrupted(ClusterbenchError):
    """A signal asked the run to stop."""


class Interruption:
    """Whether this process was asked to end, and by what; the first time it raises ``KeyboardInterrupt``.

    Attributes
    ----------
    why
        ``it was interrupted by SIGTERM``.
    """

    def __init__(self) -> None:
        self.asked = False
        self.why = "it was interrupted"
        self._raises = True

    def only_noted(self) -> None:
        """From here on nothing is raised: a member tells the head, which ends the run in order on all agents."""
        self._raises = False

    def raised_again(self) -> None:
        """From here on it raises; at once, if this process was asked meanwhile."""
        self._raises = True
        if self.asked:
            raise KeyboardInterrupt

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:  # once is enough: tidying up must not be interrupted
            return
        self.asked = True
        name = signal.Signals(number).name
        self.why = "its output is not read any more" if number == signal.SIGPIPE else f"it was interrupted by {name}"
        if self._raises:
            raise KeyboardInterrupt


class EndingSignals:
    """Asks ``handler`` on every signal that should end a run, while the context is open.

    What is ignored when the context is entered, as SIGHUP under ``nohup``, stays ignored.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        former = {number: signal.getsignal(number) for number in (*ALWAYS, *UNLESS_TAKEN)}
        untaken = (signal.SIG_DFL, signal.SIG_IGN, None)  # None: a library's, not of Python
        self._former = {number: how for number, how in former.items() if number in ALWAYS or how in untaken}
        self.install()
        return self

    def install(self) -> None:
        """Puts the handlers in place; again where a library may have put its own there, as UCX does for SIGHUP."""
        for number, former in self._former.items():
            signal.signal(number, signal.SIG_IGN if former is signal.SIG_IGN else self._handler)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, former in self._former.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)


@contextmanager
def output_that_may_close(handler: Handler) -> Iterator[None]:
    """Within, a reader of stdout or stderr that is gone is SIGPIPE for ``handler`` and no error where one prints.

    What is printed afterwards is dropped, as is what a full disk does not take.
    """
    own = _Output(sys.stdout, handler), _Output(sys.stderr, handler)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(tuple[TextIO, TextIO], own)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Output:
    """A text stream that cannot fail."""

    def __init__(self, stream: TextIO, handler: Handler) -> None:
        self._stream = stream
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # what is buffered goes there, too
            os.close(null)
        if isinstance(error, BrokenPipeError):
            self._handler(signal.SIGPIPE, None)
