"""The playground's page: tokens, code, keys, themes, and all of it without a mouse."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ops.local_service import LocalService
from tests.browser.conftest import KEY, Opens
from tests.browser.playground import Playground, script, slowly

SAID = 'Ça va?\n"C\'est" \\n 🤗 $HOME `x`'


def focused(playground: Playground) -> str:
    """The id of what has the focus, or else its class."""
    return str(playground.page.evaluate("document.activeElement.id || document.activeElement.className"))


def tab_to(playground: Playground, name: str, key: str = "Tab") -> None:
    for _ in range(60):
        if focused(playground) == name:
            return
        playground.page.keyboard.press(key)
    pytest.fail(f"{key} does not lead to {name}")


def test_tokens_tell_what_else_was_likely(playground: Playground) -> None:
    page = playground.page
    details = playground["token-details"]
    playground["show-tokens"].check()
    assert playground["legend"].is_visible()
    for mode, most in (("Chat", "top_logprobs"), ("Completion", "logprobs")):
        playground.choose(mode)
        playground.say(script("the sea is\n wide"))
        assert playground.settled() == "the sea is\n wide"
        assert playground.bodies[-1][most] == 5
        tokens = playground.answer.get_by_role("option")
        assert tokens.nth(1).text_content() == " sea"
        assert tokens.nth(1).get_attribute("data-likely") == "5"
        tokens.nth(1).hover()
        details.wait_for()
        assert "␣sea" in details.inner_text()
        assert "100 %" in details.inner_text()
        assert details.locator("li").count() >= 5
        assert details.locator("li.taken").inner_text().startswith("␣sea")
        page.mouse.move(0, 0)
        details.wait_for(state="hidden")
    playground["show-tokens"].uncheck()
    assert playground.answer.get_by_role("option").count() == 0
    assert playground.text == "the sea is\n wide"


def test_all_of_it_without_a_mouse(playground: Playground) -> None:
    page = playground.page
    assert focused(playground) == "prompt"
    tab_to(playground, "skip", "Shift+Tab")
    page.keyboard.press("Enter")
    assert focused(playground) == "prompt"
    tab_to(playground, "max_tokens", "Shift+Tab")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("2000")
    tab_to(playground, "show-tokens")
    page.keyboard.press("Space")
    tab_to(playground, "prompt")
    page.keyboard.insert_text(slowly())
    page.keyboard.press("Shift+Enter")
    assert playground["prompt"].input_value().endswith("\n")
    tab_to(playground, "send")
    page.keyboard.press("Enter")
    assert focused(playground) == "stop-answer", "the focus is not lost with the button that had it"
    playground.until_text(" tick" * 4)
    page.keyboard.press("Escape")
    playground.settled()
    assert focused(playground) == "prompt"

    # One stop for all tokens; the arrow keys walk them.
    tab_to(playground, "token", "Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    playground["token-details"].wait_for()
    assert page.evaluate("document.activeElement.dataset.index") == "2"
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "token-details"
    page.keyboard.press("Escape")
    playground["token-details"].wait_for(state="hidden")
    page.keyboard.press("Tab")
    assert focused(playground) == "prompt"

    tab_to(playground, "code")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="The same request as code")
    dialog.wait_for()
    tab_to(playground, "code-text")
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert focused(playground) == "code"


@pytest.mark.parametrize("mode", ["Chat", "Completion"])
def test_code_makes_the_same_request(playground: Playground, mode: str) -> None:
    page = playground.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    playground.choose(mode)
    playground["system"].evaluate("field => (field.value = 'Be brief.')")
    for name, value in {"temperature": "0.5", "top_p": "0.9", "top_k": "5", "repetition_penalty": "1.1"}.items():
        playground[name].fill(value)
    playground["stop"].fill("never said")
    playground.say(script(SAID))
    assert playground.settled() == SAID
    playground["code"].click()
    for language in ("curl", "openai", "huggingface_hub"):
        playground.choose(language)
        playground["code-copy"].click()
        page.get_by_text("Copied.").wait_for()
        code = str(page.evaluate("navigator.clipboard.readText()"))
        assert code == playground["code-text"].text_content()
        command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-P", "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=os.environ | {"LC_ALL": "C.UTF-8"}
        )
        assert done.returncode == 0, done.stderr
        if language == "curl":
            assert done.stdout.endswith("data: [DONE]\n\n")
            assert '"finish_reason":"stop"' in done.stdout
        else:
            assert done.stdout == f"{SAID}\n"


def test_code_names_what_a_client_cannot_ask_for(playground: Playground) -> None:
    playground.choose("Completion")
    playground["min_p"].fill("0.1")
    playground["code"].click()
    playground.choose("huggingface_hub")
    assert "# Not to be had this way: min_p." in (playground["code-text"].text_content() or "")


def test_a_key_is_asked_for_and_kept_nowhere(opens: Opens, scripted: LocalService) -> None:
    playground = opens(scripted.urls[1])
    page, service = playground.page, playground["service"]
    page.get_by_text("This service wants an API key").wait_for()
    playground.say(script("hello"))
    page.get_by_role("alert").wait_for()
    playground["key"].fill("no, that is not it: ключ")
    playground["key"].press("Tab")
    page.get_by_text("The API key is not right").wait_for()
    playground["key"].fill(KEY)
    playground["key"].press("Tab")
    page.get_by_text("1 worker ready").wait_for()
    assert service.get_attribute("data-mood") == "good"
    assert playground["model"].input_value() == "scripted"
    playground["send"].click()
    assert playground.settled() == "hello"
    playground["code"].click()
    for language in ("curl", "openai", "huggingface_hub"):
        playground.choose(language)
        assert KEY not in (playground["code-text"].text_content() or "")
        assert "TGQ_KEY" in (playground["code-text"].text_content() or "")
    stored = page.evaluate(
        "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, history.state])"
    )
    assert KEY not in stored
    page.reload()
    page.get_by_text("This service wants an API key").wait_for()
    assert playground["key"].input_value() == ""


def test_the_strip_tells_of_queue_and_workers(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("queue empty").wait_for()
    playground["max_tokens"].fill("2000")
    assert playground["service"].inner_text().startswith("1 worker ready")
    playground.say(slowly())
    playground.until_text("tick")
    page.get_by_text("1 running").wait_for()
    playground["stop-answer"].click()
    page.get_by_text("0 running").wait_for()


def test_themes(opens: Opens, scripted: LocalService) -> None:
    def background(playground: Playground) -> str:
        return str(playground.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = (opens(scripted.url, color_scheme=scheme) for scheme in ("light", "dark"))
    assert background(light) == "rgb(255, 255, 255)"
    assert background(dark) == "rgb(22, 24, 28)"
    for playground in (light, dark):
        other = "dark" if playground is light else "light"
        before = background(playground)
        playground["theme"].select_option(other)
        assert background(playground) != before
        playground.page.reload()
        assert background(playground) != before, "it is remembered"


def test_nothing_moves_for_those_who_want_that(opens: Opens, scripted: LocalService) -> None:
    for motion, animation in (("no-preference", "waiting"), ("reduce", "none")):
        playground = opens(scripted.url, reduced_motion=motion)
        playground["max_tokens"].fill("2000")
        playground.say(slowly())
        playground.until_text("tick")
        assert playground.answer.evaluate("answer => getComputedStyle(answer, '::after').animationName") == animation


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_nothing_sticks_out(opens: Opens, scripted: LocalService, width: int) -> None:
    playground = opens(scripted.url, viewport={"width": width, "height": 700})
    page = playground.page
    assert playground["settings"].evaluate("settings => settings.open") == (width >= 960)
    playground["show-tokens"].check()
    playground.say(script("A" * 300 + " and so on", repeat=5))
    playground.settled()
    page.locator(".token").last.hover()
    playground["token-details"].wait_for()
    box = playground["token-details"].bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert playground["prompt"].is_visible()
    sticky = playground["send"].bounding_box()
    assert sticky is not None
    assert sticky["y"] + sticky["height"] <= 700
