"""LoRA adapters with random weights, as PEFT writes them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from workers.engine.plan import FloatArray


def write_adapter(folder: Path, base: Path, seed: int, **options: Any) -> None:
    """Make an adapter for the model in `base`; `options` are of PEFT's `LoraConfig`."""
    defaults = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    model = _base(base)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, peft.LoraConfig(**{**defaults, **options}))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                # PEFT begins with one factor zero.
                if "lora_" in name:
                    parameter.normal_(0.0, 0.2)
        adapted.save_pretrained(str(folder))


def peft_logits(base: Path, adapter: Path | None, ids: list[int]) -> FloatArray:
    """What PEFT's own forward computes, `[len(ids), vocab]`."""
    model: Any = _base(base)
    if adapter is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.PeftModel.from_pretrained(model, str(adapter))
    model.eval()
    with torch.inference_mode():
        logits: FloatArray = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    return logits


def _base(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model
