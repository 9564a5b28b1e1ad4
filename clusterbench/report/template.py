"""How pages are made of their templates: the same settings for all of them, and one style sheet."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

_HERE = Path(__file__).parent


def template(path: Path) -> jinja2.Template:
    """The template in this file, which may build on its neighbours and on those of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([path.parent, _HERE]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(path.name)


def css(path: Path = _HERE / "page.css") -> Markup:
    """A style sheet as it stands in a page: that of all pages, or one that a page has besides."""
    return Markup(path.read_text(encoding="utf-8"))
