"""Chromium, driven by Playwright, on services of our own. Where there is no browser, these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ops.local_service import LocalService
from tests.acceptance.observation import Observer
from tests.browser.playground import Playground

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "sesame"
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-gpu",
)
"""Nothing but what the tests ask for leaves the browser."""

Opens = Callable[..., Playground]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def scripted(browser: Browser) -> Iterator[LocalService]:
    """Two web nodes and one worker with the scripted model; the second node wants a key."""
    with LocalService({"MODEL_ID": "scripted"}) as service:
        service.add_web({"API_KEY": KEY})
        service.wait_ready()
        yield service


@pytest.fixture(scope="package")
def real(browser: Browser) -> Iterator[LocalService]:
    """One web node and one worker with the default model."""
    with LocalService({"TGQ_DEVICE": "cpu"}) as service:
        yield service


@pytest.fixture
def seen(scripted: LocalService) -> Iterator[Observer]:
    with Observer(scripted) as observer:
        yield observer


@pytest.fixture
def opens(browser: Browser) -> Iterator[Opens]:
    """Opens the playground of a web node in a window of its own; keyword arguments are Playwright's for a context.

    At the end no script has failed, and nothing was tried that the page's policy forbids.
    """
    opened: list[Playground] = []

    def open_page(url: str, **options: Any) -> Playground:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
        context.set_default_timeout(20_000)
        playground = Playground(context.new_page(), url)
        opened.append(playground)
        playground.open()
        return playground

    yield open_page
    for playground in opened:
        problems = list(playground.problems)
        playground.page.context.close()
        assert not problems


@pytest.fixture
def playground(opens: Opens, scripted: LocalService) -> Playground:
    return opens(scripted.url)
