"""Answers within grammars: from a model that pushes against them, cut and resumed, and beside other requests."""

from __future__ import annotations

import itertools
import json
import re
import threading
from typing import Any

import jsonschema
import numpy as np
import pytest

from common import grammar_compiler
from common.errors import GenerationFailed, InvalidRequest
from common.grammar import Grammar, read_grammar
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Finish, Job, Tokens
from tests.unit.engine.support import (
    EOS,
    HashedModel,
    byte_fallback,
    last_of,
    make_job,
    metaspace,
    run,
    save,
    text_of,
    tokens_of,
)
from workers.engine.engine import Engine
from workers.engine.grammar import Grammars
from workers.engine.messages import JobEvent
from workers.engine.plan import FloatArray, StepPlan

VOCAB = 400
"""More than the tokenizer has, as with many models."""


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SHORT = {"type": "string", "maxLength": 8}
ADDRESS = record(street=SHORT, number={"type": "integer", "minimum": 1, "maximum": 999})
SCHEMAS: dict[str, dict[str, Any]] = {
    "two fields": record(a=SHORT, b={"type": "boolean"}),
    "any object": {"type": "object", "properties": {}, "maxProperties": 2, "additionalProperties": SHORT},
    "nested": record(person=record(name=SHORT, address=ADDRESS)),
    "$ref": record(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address"})
    | {"$defs": {"address": ADDRESS}},
    "recursive $ref": {
        "$defs": {
            "node": record(value={"type": "boolean"})
            | {"properties": {"value": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}}}
        },
        **record(head={"$ref": "#/$defs/node"}),
    },
    "enum": record(a={"enum": ["red", "green", 3, None, True, {"x": [1]}]}),
    "const": record(a={"const": "always"}, b={"const": 7}),
    "anyOf null": record(a={"anyOf": [SHORT, {"type": "null"}]}),
    "list of types": record(a={"type": ["boolean", "null"]}),
    "oneOf": record(a={"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}]}),
    "allOf": record(a={"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]}),
    "optional fields": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"enum": [1, 2]}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "array bounds": record(a={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}),
    "tuple": record(
        a={"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "minItems": 2}
    ),
    "integer bounds": record(a={"type": "integer", "exclusiveMinimum": -5, "maximum": 120}),
    "number bounds": record(a={"type": "number", "minimum": 0.5, "exclusiveMaximum": 1}),
    "multipleOf": record(a={"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100}),
    "lengths": record(a={"type": "string", "minLength": 3, "maxLength": 5}),
    "pattern": record(a={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "formats": record(
        day={"type": "string", "format": "date"},
        at={"type": "string", "format": "time"},
        id={"type": "string", "format": "uuid"},
        ip={"type": "string", "format": "ipv4"},
    ),
    "pattern properties": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a"],
        "patternProperties": {"^x[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "sixty fields in four levels": record(
        **{
            f"level{i}": record(
                **{f"group{j}": record(**{f"field{k}": {"enum": [k, None]} for k in range(5)}) for j in range(4)}
            )
            for i in range(3)
        }
    ),
}


class PushingModel(HashedModel):
    """Its logits depend on all ids so far, and above everything it likes blanks, line ends and one letter."""

    def __init__(self, tokenizer: Tokenizer, likes: str = " \n\tz") -> None:
        super().__init__(VOCAB, num_blocks=2000)
        self.card = self.card.__class__(
            **{name: getattr(self.card, name) for name in self.card.__struct_fields__}
            | {"max_total_tokens": 4000, "max_batch_total_tokens": 7000}
        )
        self.likes = [i for i in range(tokenizer.vocab_size) if set(tokenizer.token_text(i)) & set(likes)]

    def forward(self, plan: StepPlan) -> FloatArray:
        logits = super().forward(plan)
        logits[:, self.likes] += 8.0
        return logits


def engine_of(tokenizer: Tokenizer, model: HashedModel | None = None) -> Engine:
    return Engine(
        model or PushingModel(tokenizer), tokenizer, Settings.of(model_id="test", max_batch_prefill_tokens=64)
    )


def job(schema: dict[str, Any] | str, *, name: str = "r", **parameters: Any) -> Job:
    grammar = Grammar("regex", schema) if isinstance(schema, str) else read_grammar("json", schema)
    return make_job([5, 6, 7], name=name, grammar=grammar, **{"max_new_tokens": 1500, **parameters})


def finish_of(events: list[JobEvent], name: str = "r") -> Finish:
    last = last_of(events, name)
    assert isinstance(last, Tokens), last
    assert last.finish is not None
    return last.finish


def check_json(text: str, schema: dict[str, Any]) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator, format_checker=checker)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid_however_the_model_pushes(tokenizer: Tokenizer, name: str, sampled: bool) -> None:
    schema = SCHEMAS[name]
    jobs = [
        job(schema, name=str(seed), sample=sampled, seed=seed, temperature=3.0 if sampled else 1.0)
        for seed in range(6 if sampled else 1)
    ]
    events = run(engine_of(tokenizer), jobs)
    for one in jobs:
        assert finish_of(events, one.id).reason == "eos_token"
        text = text_of(tokens_of(events, one.id))
        check_json(text, schema)
        assert not re.search(r"\s\s", re.sub(r'"[^"]*"', '""', text))


@pytest.mark.parametrize("pattern", [r"[0-9]{3}-[0-9]{4}", r"(yes|no)( indeed){0,2}", r"^a+b$", r"[^\x00-\x7f]{2}", ""])
def test_answers_match_their_regex(tokenizer: Tokenizer, pattern: str) -> None:
    jobs = [job(pattern, name=str(seed), sample=True, seed=seed, max_new_tokens=400) for seed in range(5)]
    events = run(engine_of(tokenizer), jobs)
    for one in jobs:
        text = text_of(tokens_of(events, one.id))
        assert finish_of(events, one.id).reason == "eos_token"
        assert re.fullmatch(pattern.strip("^$"), text)


def test_a_sentence_piece_tokenizer_works_too(tmp_path: Any) -> None:
    tokenizer = save(byte_fallback(), tmp_path / "fallback")
    model = PushingModel(tokenizer)
    model.vocab_size = 420
    events = run(engine_of(tokenizer, model), [job(SCHEMAS["nested"], sample=True)])
    check_json(text_of(tokens_of(events)), SCHEMAS["nested"])


def test_end_of_text_only_where_the_grammar_may_end(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, VOCAB)
    state = grammars.start(Grammar("regex", "a{2,3}"))
    (a,) = tokenizer.ids("a", add_special_tokens=False)
    (eos,) = tokenizer.eos_ids
    allowed = []
    for _ in range(4):
        while not state.ready:
            pass
        allowed.append((bool(state.allowed()[a]), bool(state.allowed()[eos])))
        state.advance(a)
    assert allowed == [(True, False), (True, False), (True, True), (False, True)]
    with pytest.raises(GenerationFailed, match="do not match the grammar"):
        state.allowed()


def test_ids_beyond_the_tokenizer_are_never_allowed(tokenizer: Tokenizer) -> None:
    state = Grammars(tokenizer, VOCAB).start(Grammar("regex", "(?s:.)*"))
    while not state.ready:
        pass
    allowed = state.allowed()
    assert allowed.shape == (VOCAB,)
    assert allowed[: tokenizer.vocab_size].sum() > 100
    assert not allowed[tokenizer.vocab_size :].any()
    assert not allowed[list(tokenizer.special_ids - tokenizer.eos_ids)].any()


def test_an_answer_that_is_cut_says_so(tokenizer: Tokenizer) -> None:
    events = run(engine_of(tokenizer), [job(SCHEMAS["nested"], max_new_tokens=4)])
    assert finish_of(events).reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(text_of(tokens_of(events)))


def test_stop_strings_hold_within_a_grammar(tokenizer: Tokenizer) -> None:
    events = run(engine_of(tokenizer), [job(SCHEMAS["two fields"], stop=["}"])])
    finish, text = finish_of(events), text_of(tokens_of(events))
    assert (finish.reason, finish.stop) == ("stop_sequence", "}")
    check_json(text, SCHEMAS["two fields"])
    events = run(engine_of(tokenizer), [job(SCHEMAS["two fields"], stop=['"b"'])])
    assert finish_of(events).reason == "stop_sequence"
    assert text_of(tokens_of(events)).endswith('"b"')


def test_without_end_of_text_it_goes_on_while_it_can(tokenizer: Tokenizer) -> None:
    lengths = []
    for ignore_eos in (False, True):
        bias = {min(tokenizer.eos_ids): 100.0}
        events = run(engine_of(tokenizer), [job("[xy]{1,30}", logit_bias=bias, ignore_eos=ignore_eos)])
        assert finish_of(events).reason == "eos_token"
        lengths.append(len(text_of(tokens_of(events))))
    assert lengths == [1, 30]


def test_forced_tokens_have_probability_one(tokenizer: Tokenizer) -> None:
    events = run(engine_of(tokenizer), [job("yes", top_n_tokens=3)])
    tokens = tokens_of(events)
    assert text_of(tokens) == "yes"
    assert tokens[-1].text == EOS
    assert tokens[-1].logprob == 0.0
    assert [top.id for top in tokens[-1].top] == [tokens[-1].id]


@pytest.mark.parametrize("sampled", [False, True])
def test_resumed_anywhere_it_goes_on_the_same(tokenizer: Tokenizer, sampled: bool) -> None:
    parameters: dict[str, Any] = {"sample": sampled, "temperature": 2.0, "top_p": 0.95, "stop": ["zzz"]}
    schema = record(
        a=SHORT,
        b={"type": "array", "items": {"type": "integer", "maximum": 50}, "maxItems": 3},
        c={"enum": ["é🤗", "z"]},
    )
    whole = run(engine_of(tokenizer), [job(schema, **parameters)])
    tokens = tokens_of(whole)
    for cut in range(len(tokens)):
        known = [token.id for token in tokens[:cut]]
        rest = run(engine_of(tokenizer), [job(schema, generated_ids=known, attempt=2, **parameters)])
        assert tokens_of(rest) == tokens[cut:]
        assert finish_of(rest).reason == finish_of(whole).reason


def test_resumed_with_tokens_that_do_not_match_it_fails(tokenizer: Tokenizer) -> None:
    wrong = tokenizer.ids("x", add_special_tokens=False)
    last = last_of(run(engine_of(tokenizer), [job("yes", generated_ids=wrong)]))
    assert isinstance(last, Failed)
    assert last.error_type == "generation"
    assert "do not match the grammar" in last.message


def test_a_model_that_wants_nothing_the_grammar_allows_fails(tokenizer: Tokenizer) -> None:
    class Stubborn(PushingModel):
        def forward(self, plan: StepPlan) -> FloatArray:
            logits = super().forward(plan)
            logits[:, tokenizer.ids("yes", add_special_tokens=False)] = -np.inf
            logits[:, tokenizer.ids("y", add_special_tokens=False)] = -np.inf
            logits[:, tokenizer.ids("ye", add_special_tokens=False)] = -np.inf
            return logits

    events = run(engine_of(tokenizer, Stubborn(tokenizer)), [job("yes"), make_job([5], name="other")])
    failed = last_of(events)
    assert isinstance(failed, Failed)
    assert "not finite" in failed.message
    assert finish_of(events, "other").generated_tokens == 20


@pytest.mark.parametrize(
    ("grammar", "error_type", "message"),
    [
        (Grammar("regex", "[a"), "validation", "unclosed character class"),
        (Grammar("json", '{"properties":{"a":{"not":{}}}}'), "validation", "Unimplemented keys"),
        (Grammar("json", "{"), "validation", "it is not JSON"),
        (Grammar("regex", "a" * 10_000), "validation", "bytes, at most"),
    ],
)
def test_a_bad_grammar_from_elsewhere_ends_its_request_alone(
    tokenizer: Tokenizer, grammar: Grammar, error_type: str, message: str
) -> None:
    bad = make_job([5], grammar=grammar)
    events = run(engine_of(tokenizer), [bad, make_job([5], name="other")])
    failed = last_of(events)
    assert isinstance(failed, Failed)
    assert failed.error_type == error_type
    assert message in failed.message
    assert finish_of(events, "other").reason == "length"


def test_a_limit_reached_on_the_way_ends_its_request_alone(tokenizer: Tokenizer) -> None:
    schema = {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object", "additionalProperties": False}
    events = run(engine_of(tokenizer), [job(schema), make_job([5], name="other")])
    last = last_of(events)
    assert isinstance(last, Failed) or (last.finish is not None and last.finish.reason == "length")
    assert finish_of(events, "other").reason == "length"


def test_tokenizers_and_models_without_what_it_needs_are_refused(tokenizer: Tokenizer, tmp_path: Any) -> None:
    with pytest.raises(InvalidRequest, match="no end-of-text token"):
        Grammars(tokenizer, min(tokenizer.eos_ids)).start(Grammar("regex", "a"))
    with pytest.raises(InvalidRequest, match="`grammar` is not supported: this model's tokenizer"):
        Grammars(save(metaspace(), tmp_path / "metaspace"), VOCAB).start(Grammar("regex", "a"))


def test_a_request_waits_for_its_grammar_and_the_others_do_not(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    compile_grammar = grammar_compiler.compile_grammar

    def slow(*arguments: Any) -> Any:
        assert go.wait(30)
        return compile_grammar(*arguments)

    monkeypatch.setattr(grammar_compiler, "compile_grammar", slow)
    engine = engine_of(tokenizer)
    engine.add([job("yes"), make_job([5], name="other"), job("no", name="gone")])
    events = list(itertools.chain.from_iterable(engine.step() for _ in range(40)))
    assert finish_of(events, "other").reason == "length"
    assert not tokens_of(events)
    due = engine.next_due()
    assert due is not None
    assert due > 0
    engine.cancel(["gone"])
    go.set()
    events = run(engine, [])
    assert text_of(tokens_of(events)) == "yes"


def test_a_grammar_is_compiled_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Grammar] = []
    compile_grammar = grammar_compiler.compile_grammar

    def counting(grammar: Grammar, *arguments: Any) -> Any:
        compiled.append(grammar)
        return compile_grammar(grammar, *arguments)

    monkeypatch.setattr(grammar_compiler, "compile_grammar", counting)
    engine = engine_of(tokenizer)
    for _ in range(3):
        run(engine, [job("yes"), job("no", name="s"), job("yes", name="t")])
    assert sorted(grammar.text for grammar in compiled) == ["no", "yes"]
