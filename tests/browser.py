"""A real browser for the pages: Debian's chromium through Playwright; tests skip, saying so, where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)")


@contextmanager
def open_page(
    width: int = 1200, height: int = 900, dark: bool = False, **context
) -> Iterator[tuple[object, list[str]]]:
    """A page, and what went wrong on it so far: console errors, uncaught exceptions, requests that failed."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **context
        )
        troubles: list[str] = []
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("requestfailed", lambda request: troubles.append(f"{request.url}: {request.failure}"))
        try:
            yield page, troubles
        finally:
            browser.close()
