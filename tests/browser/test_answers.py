"""Answers on the playground: they stream, stop, are held to a schema, and stay text."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator

from ops.local_service import LocalService
from tests.acceptance.observation import Observer
from tests.browser.conftest import Opens
from tests.browser.playground import Playground, script, slowly

MARKUP = "<script>hacked = 1</script><img src=x onerror='hacked = 2'><b>bold</b> **bold** [a](javascript:hacked=3) &amp;\n\n# x"


def test_a_chat_streams_and_remembers(playground: Playground) -> None:
    playground.say(script(" one two three", repeat=8, step_ms=100))
    playground.until_text("three")
    assert playground.answer.get_attribute("aria-busy") == "true", "all came at once"
    assert playground["send"].is_disabled()
    said = playground.settled()
    assert said == " one two three" * 8
    figures = playground.figures.inner_text()
    assert "first token " in figures
    assert " tokens/s · " in figures
    assert playground["announcer"].text_content() == f"Answer: {said}"
    assert playground["prompt"].input_value() == ""

    playground["system"].fill("Be brief.")
    playground.say(script("again"))
    assert playground.settled() == "again"
    roles = [message["role"] for message in playground.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert playground.bodies[-1]["messages"][2]["content"] == said

    playground["clear"].click()
    assert playground.page.locator(".exchange").count() == 0
    playground.say(script("anew"))
    assert playground.settled() == "anew"
    assert len(playground.bodies[-1]["messages"]) == 2


def test_a_long_answer_does_not_wear_the_page_out(playground: Playground) -> None:
    """Work that grows with the square of an answer's length would take minutes here."""
    playground["show-tokens"].check()
    playground["max_tokens"].fill("3000")
    playground.say(script(" tick", repeat=3000))
    playground.until_text("tick")
    assert playground.settled() == " tick" * 3000
    assert playground.answer.get_by_role("option").count() == 3000


def test_a_completion_goes_on_with_the_text(playground: Playground) -> None:
    playground.choose("Completion")
    playground["max_tokens"].fill("3")
    playground["temperature"].fill("0")
    playground["stop"].fill("one\ntwo")
    playground.say("It was")
    assert playground.settled() == " The quick brown"
    assert "3 tokens · cut off at the limit" in playground.figures.inner_text()
    assert playground["prompt"].input_value() == "It was"
    body = playground.bodies[-1]
    assert {name: body[name] for name in ("prompt", "max_tokens", "temperature", "stop")} == {
        "prompt": "It was",
        "max_tokens": 3,
        "temperature": 0,
        "stop": ["one", "two"],
    }
    assert not {"top_p", "top_k", "seed", "messages", "response_format"} & set(body), "what is empty is not sent"


def test_stop_cancels_the_job_at_the_worker(playground: Playground, seen: Observer) -> None:
    playground["max_tokens"].fill("2000")
    playground.say(slowly())
    playground.until_text("tick tick")
    playground.until(lambda: seen.running() == 1, "the worker tells of it")
    playground["stop-answer"].click()
    kept = playground.settled()
    playground.until(seen.idle, "the worker lets go of it")
    assert playground.text == kept
    assert 2 <= kept.count(" tick") < 500
    assert playground.figures.inner_text().endswith("stopped")
    assert playground["stop-answer"].is_hidden()
    playground.say(script("and on"))
    assert playground.settled() == "and on"


def test_a_page_that_is_closed_cancels_too(playground: Playground, seen: Observer) -> None:
    playground["max_tokens"].fill("2000")
    playground.say(slowly())
    playground.until(lambda: seen.running() == 1, "the worker tells of it")
    playground.page.goto("about:blank")
    playground.until(seen.idle, "the worker lets go of it")


def test_a_schema_makes_json(opens: Opens, real: LocalService) -> None:
    playground = opens(real.url)
    playground["example-schema"].click()
    schema = json.loads(playground["response_format"].input_value())
    playground["seed"].fill("7")
    playground.page.set_default_timeout(90_000)
    playground.say("Invent a person.")
    Draft202012Validator(schema).validate(json.loads(playground.settled()))
    assert "valid JSON" in playground.figures.inner_text()


def test_a_schema_that_is_none_is_shown_to_be_wrong(playground: Playground) -> None:
    playground["settings"].locator("summary").click()  # what is wrong is shown even where it is folded away
    playground["response_format"].evaluate("(field, text) => (field.value = text)", '{"type": ')
    playground.say("Hello")
    message = playground["response_format"].evaluate("field => field.validationMessage")
    assert message.startswith("This is not JSON")
    assert playground["response_format"].is_visible()
    assert playground["response_format"].evaluate("field => field === document.activeElement")
    assert not playground.bodies
    assert playground["prompt"].input_value() == "Hello"


def test_markup_is_text(playground: Playground) -> None:
    page = playground.page
    for tokens in (False, True):
        playground["show-tokens"].set_checked(tokens)
        playground.say(script(MARKUP))
        assert playground.settled() == MARKUP
    playground.choose("Completion")
    playground.say(f"{MARKUP}{script(MARKUP)}")
    assert playground.settled() == MARKUP
    assert page.locator(".exchange .said").last.text_content() == f"{MARKUP}{script(MARKUP)}"
    page.locator(".token").last.hover()
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator(":is(.exchange, #announcer, #token-details) :is(script, img, b, a)").count() == 0


def test_errors_name_their_field_and_cost_nothing(playground: Playground) -> None:
    playground["stop"].fill("a\nb\nc\nd\ne")
    playground.say("Hello")
    error = playground.page.get_by_role("alert")
    error.wait_for()
    assert "`stop` takes at most 4 sequences, given 5" in error.inner_text()
    assert "Request " in error.inner_text()
    assert playground["stop"].get_attribute("aria-invalid") == "true"
    assert playground["prompt"].input_value() == "Hello", "what was said is there to be sent again"
    playground["stop"].fill("a")
    assert playground["stop"].get_attribute("aria-invalid") is None
    playground.say(script("well"))
    assert playground.settled() == "well"
    assert len(playground.bodies[-1]["messages"]) == 1, "what got no answer is not part of the conversation"


def test_an_answer_that_fails_midway_says_so(playground: Playground) -> None:
    playground.say(script(" word", repeat=10, raise_at=3))
    playground.page.get_by_role("alert").wait_for()
    assert playground.settled() == " word" * 3
    assert "Request failed during generation" in playground.page.get_by_role("alert").inner_text()
