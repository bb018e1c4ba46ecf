"""Which prompts a run has, by its options."""

from __future__ import annotations

from pathlib import Path

from ops.batches.input import BadInput
from ops.bench.serve.apis import Api
from ops.bench.serve.dataset import read_dataset
from ops.bench.serve.plan import Plan
from ops.bench.serve.prompts import FilePrompts, MadeUpPrompts, PromptSource

WORDS = 128


def prompts_of(
    dataset: Path | None, api: Api, *, input_len: int | None, range_ratio: float | None, plan: Plan
) -> PromptSource:
    """
    Raises:
        BadInput: the options contradict each other, or the file cannot be used.
    """
    if dataset is None:
        return MadeUpPrompts(input_len or WORDS, plan.output_len, range_ratio or 0.0, plan.seed)
    for option, value in (("--input-len", input_len), ("--range-ratio", range_ratio)):
        if value is not None:
            raise BadInput(f"{option} is for made-up prompts; these come from --dataset {dataset}")
    return FilePrompts(read_dataset(dataset, api.name, api.path), dataset.name, plan.seed)
