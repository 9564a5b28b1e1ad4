"""The words of a page of the doctor, part by part."""

from __future__ import annotations

import re
from html import unescape


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def section(html: str, name: str) -> str:
    """The words of one part; empty where the page has none."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', html, re.DOTALL)
    return words(found[1]) if found else ""


def suspects(html: str) -> list[tuple[str, str, str]]:
    """Host, counts and findings of each line of the table of hosts."""
    lines = re.findall(r'<tr class="\w+"><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>', html)
    return [(words(host), words(counts), words(what)) for host, counts, what in lines]


def articles(html: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The hosts of each box of findings, and what is in it: severity and name."""
    return [
        (
            words(re.findall(r"<h3>(.*?)</h3>", box)[0]),
            [
                (severity, words(said).split()[-1])
                for severity, said in re.findall(r'<li class="(\w+)">(.*?</code>)', box, re.DOTALL)
            ],
        )
        for box in re.findall(r'<article class="finding \w+">(.*?)</article>', html, re.DOTALL)
    ]
