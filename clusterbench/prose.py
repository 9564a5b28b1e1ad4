"""The parts of a docstring that are printed: a chart's caption, a diagnosis's advice."""

from __future__ import annotations

import inspect
import re

_HEADING = re.compile(r"^(?P<title>\S[^\n]*)\n-{3,}$", re.MULTILINE)


def sections(thing: type) -> dict[str, str]:
    """Paragraphs under each underlined heading of a docstring, lines joined.

    >>> class Kettle:
    ...     '''Boils water.
    ...
    ...     How to read it
    ...     --------------
    ...     Steam means
    ...     hot.
    ...     '''
    >>> sections(Kettle)
    {'How to read it': 'Steam means hot.'}
    """
    text = inspect.getdoc(thing) or ""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading["title"]: " ".join(text[heading.end() : end].split())
        for heading, end in zip(headings, ends, strict=False)
    }
