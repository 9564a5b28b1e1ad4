"""What all tests share: torch with one thread, and the system's chromium for those that open a page."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def pytest_collection_finish() -> None:
    """Has torch compute with one thread, as ranks do: several spin while one of them waits for a core.

    Beside other work on two cores they made 300 sums of 156,000 numbers cost 15 CPU seconds instead of 0.7.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "chromium is not installed: apt-get install --no-install-recommends chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a tab of its own, and fails the test on whatever it complains of or asks anybody for.

    ``options`` are those of a browser context.
    """
    complaints: list[str] = []
    contexts = []

    def visit(address: str, width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: complaints.append(request.url) if _leaves(request.url) else None)
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def _leaves(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))
