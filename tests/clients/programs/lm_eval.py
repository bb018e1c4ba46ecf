"""EleutherAI's evaluation harness: tasks of a few lines, scored and generated over HTTP and by transformers itself."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

# Nothing of this is looked for on a hub; that must be said before the harness is imported.
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})

PACKAGES = ("lm-eval", "transformers", "torch")
ROWS: list[dict[str, Any]] = [
    {"question": "The capital of France is", "choices": ["Paris", "a large green vegetable"], "gold": 0},
    {"question": "Two plus two is", "choices": ["purple", "four"], "gold": 1},
    {"question": "Água mineral 🤗 é", "choices": ["naïve", "boa"], "gold": 1},
]
SCORED = """\
task: scored
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: gold
"""
GENERATED = """\
task: generated
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: question
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs: {{until: ["\\n", "."], max_gen_toks: 12, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


def responses(services: Services, task: str, model: str, arguments: dict[str, Any], **options: Any) -> list[Any]:
    """What the model answered to every request of a task, in their order."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = Path(services.folder) / "tasks"
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.json"
    rows.write_text("\n".join(json.dumps(row) for row in ROWS))
    (folder / "scored.yaml").write_text(SCORED.format(rows=rows))
    (folder / "generated.yaml").write_text(GENERATED.format(rows=rows))
    results = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [response[0] for sample in samples for response in sample["resps"]]


@functools.cache
def by_transformers(services: Services, task: str) -> list[Any]:
    arguments = {"pretrained": services.model, "dtype": "float32", "device": "cpu"}
    return responses(services, task, "hf", arguments)


def over_http(services: Services, task: str, **arguments: Any) -> list[Any]:
    os.environ["OPENAI_API_KEY"] = services.key
    url = f"{services.real}/v1/completions"
    local = {"base_url": url, "model": "tgi", "tokenizer": services.model, "max_retries": 1, **arguments}
    return responses(services, task, "local-completions", local)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) == sum(len(row["choices"]) for row in ROWS)
    for (likelihood, greedy), (own, own_greedy) in zip(found, expected, strict=True):
        assert abs(likelihood - own) < 1e-3, (found, expected)
        assert greedy is own_greedy


def check_log_likelihoods_are_those_of_transformers(services: Services) -> None:
    assert_same(over_http(services, "scored", tokenizer_backend="huggingface"), by_transformers(services, "scored"))


def check_several_prompts_in_a_request(services: Services) -> None:
    found = over_http(services, "scored", tokenizer_backend="huggingface", batch_size=4, num_concurrent=2)
    assert_same(found, by_transformers(services, "scored"))


def check_tokenizer_detected(services: Services) -> None:
    assert_same(over_http(services, "scored"), by_transformers(services, "scored"))


def check_prompts_as_text(services: Services) -> None:
    found = over_http(services, "generated", tokenized_requests=False)
    assert found == by_transformers(services, "generated")


def check_generation(services: Services) -> None:
    found = over_http(services, "generated", tokenizer_backend="huggingface")
    assert found == by_transformers(services, "generated")


def check_local_chat_completions(services: Services) -> None:
    os.environ["OPENAI_API_KEY"] = services.key
    arguments = {"base_url": f"{services.real}/v1/chat/completions", "model": "tgi", "max_retries": 1}
    said = responses(services, "generated", "local-chat-completions", arguments, apply_chat_template=True)
    assert len(said) == len(ROWS)
    assert all(text and "\n" not in text and "." not in text for text in said), said
