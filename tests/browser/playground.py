"""The playground as a person uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Request

REFUSED = "Failed to load resource"
"""How Chromium's console tells of answers above 399, which are the service's own."""


def script(text: str, **how: Any) -> str:
    """A prompt that tells the scripted model what to say."""
    return f"<<script {json.dumps({'text': text, **how})}>>"


def slowly(text: str = " tick", repeat: int = 2000) -> str:
    """An answer that is not over before somebody stops it, if so many tokens are asked for."""
    return script(text, repeat=repeat, step_ms=20)


class Playground:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        """What scripts failed with, and what browsers say of violated policies."""
        self.bodies: list[dict[str, Any]] = []
        """Of the requests for answers."""
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._requested)

    def open(self) -> None:
        self.page.goto(f"{self.url}/playground")

    def __getitem__(self, name: str) -> Locator:
        """A control by its id."""
        return self.page.locator(f"#{name}")

    @property
    def answer(self) -> Locator:
        """The last one."""
        return self.page.locator(".exchange .answer").last

    @property
    def figures(self) -> Locator:
        return self.page.locator(".exchange .figures").last

    @property
    def text(self) -> str:
        """What the answer says, to the letter."""
        return self.answer.text_content() or ""

    def choose(self, label: str) -> None:
        """One of the buttons of which one is chosen."""
        self.page.locator(".choices label").get_by_text(label, exact=True).click()

    def say(self, text: str) -> None:
        self["prompt"].fill(text)
        self["prompt"].press("Enter")

    def settled(self) -> str:
        """Wait for the end of the last answer; returns its text."""
        self.page.wait_for_function("() => [...document.querySelectorAll('.answer')].at(-1)?.ariaBusy === null")
        return self.text

    def until_text(self, text: str) -> None:
        self.page.wait_for_function(
            "text => [...document.querySelectorAll('.answer')].at(-1)?.textContent.includes(text)", arg=text
        )

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
        """Wait for something that is not on the page."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            self.page.wait_for_timeout(20)

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith(REFUSED):
            self.problems.append(text)

    def _requested(self, request: Request) -> None:
        if request.method == "POST":
            self.bodies.append(json.loads(request.post_data or ""))
