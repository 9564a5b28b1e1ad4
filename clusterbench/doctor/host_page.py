"""What ``clusterbench env`` prints as one self-contained page: facts, the devices as a picture, variables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from clusterbench.doctor.env import NOTHING_SHOWN, NVLINKS, facts, variables
from clusterbench.doctor.topology import topology
from clusterbench.own_copy import version
from clusterbench.report.template import css, template
from clusterbench.words import few

_HERE = Path(__file__).parent


def host_page(host: Mapping[str, Any], day: date) -> str:
    """The page as HTML, of one host of an ``environment.json``."""
    shown = topology(host)
    return template(_HERE / "host.html").render(
        name=str(host.get("hostname") or "a host without a name"),
        day=day.isoformat(),
        facts=facts(host),
        variables=variables(host),
        topology=shown,
        rails=shown.rails,
        few=few,
        nothing_shown=NOTHING_SHOWN,
        nvlinks_title=NVLINKS,
        version=version(),
        css=css(),
        own_css=css(_HERE / "host.css"),
    )
