"""Finds the decoder layers of a model that `FusedLayer` can stand for, and checks each of them before it does.

Nothing is taken from a model's name: a layer qualifies by its parts, and by computing what the original does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from workers.engine.attention import LayerOptions, LayerShape
from workers.engine.fused_layer import FusedLayer, RmsNorm
from workers.engine.layer_probe import LayerProbe
from workers.engine.lora import LayerParts
from workers.engine.model_runner import ModelCall
from workers.engine.whole_attention import WholeAttention

_TOKENS = 12
_TOLERANCE = 1e-4
"""Largest difference of an output from the original's, beside the largest of what the layer adds to its input."""
_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED = ("gate_proj", "up_proj", "down_proj")


@torch.inference_mode()
def fuse_layers(model: PreTrainedModel, probe: LayerProbe) -> LayerParts:
    """Replace decoder layers in place where that changes nothing, before linear layers are packed.

    Args:
        model: float32, with the engine's attention.
        probe: what its layers ask of their attention.

    Returns:
        What the linear layers of the fused layers are made of.
    """
    parts: LayerParts = {}
    for name, (given, output) in _calls(model).items():
        layer = model.get_submodule(name)
        fused = _fused(layer, probe)
        if fused is None or not _agrees(fused, given, output):
            continue
        parent, _, attribute = name.rpartition(".")
        # Models read plain attributes of their layers, such as the kind of attention.
        for key, value in vars(layer).items():
            if not key.startswith("_") and not hasattr(fused, key):
                setattr(fused, key, value)
        setattr(model.get_submodule(parent), attribute, fused)
        parts |= _parts(name, layer)
    return parts


def _calls(model: PreTrainedModel) -> dict[str, tuple[dict[str, Any], Tensor]]:
    """What the layers that may qualify are called with and return, for a few tokens."""
    calls: dict[str, tuple[dict[str, Any], Tensor]] = {}

    def note(name: str, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        if len(arguments) == 1 and isinstance(arguments[0], Tensor) and isinstance(output, Tensor):
            calls[name] = ({"hidden_states": arguments[0].clone(), **options}, output.clone())

    hooks = [
        module.register_forward_hook(lambda _, a, k, o, n=name: note(n, a, k, o), with_kwargs=True)
        for name, module in _candidates(model)
    ]
    if hooks:
        config = model.config.get_text_config()
        # Over all of the context: some attention changes far behind the first tokens.
        last = (getattr(config, "max_position_embeddings", None) or _TOKENS) - 1
        places = np.linspace(0, last, _TOKENS).astype(np.int64)
        ids = (7 + 7919 * np.arange(_TOKENS)) % config.vocab_size
        try:
            ModelCall(model)(ids, places, WholeAttention(), [0])
        finally:
            for hook in hooks:
                hook.remove()
    return calls


def _candidates(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if {child for child, _ in module.named_children()} == _CHILDREN:
            yield name, module


def _fused(layer: nn.Module, probe: LayerProbe) -> FusedLayer | None:
    attention, feed = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    index = getattr(attention, "layer_idx", None)
    if index not in probe.shapes or not _only_linears(attention, _ATTENTION) or not _only_linears(feed, _FEED):
        return None
    shape: LayerShape = probe.shapes[index]
    options: LayerOptions = probe.options[index]
    queries = attention.get_submodule("q_proj")
    activation = getattr(feed, "act_fn", None)
    norms = [_norm(layer.get_submodule(n)) for n in ("input_layernorm", "post_attention_layernorm")]
    if norms[0] is None or norms[1] is None or not isinstance(activation, nn.Module):
        return None
    if shape.key_width != shape.value_width or not isinstance(queries, nn.Linear):
        return None
    return FusedLayer(
        index,
        norms=(norms[0], norms[1]),
        projections=(
            _joined(attention, "q_proj", "k_proj", "v_proj"),
            attention.get_submodule("o_proj"),
            _joined(feed, "gate_proj", "up_proj"),
            feed.get_submodule("down_proj"),
        ),
        activation=activation,
        heads=(queries.out_features // shape.key_width, shape.kv_heads),
        options=options,
    )


def _only_linears(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether these are linear layers, and the module computes with nothing else but an activation."""
    children = dict(module.named_children())
    activations = {name for name, child in children.items() if not any(True for _ in child.parameters())}
    return set(children) - activations == set(names) and all(type(children[name]) is nn.Linear for name in names)


def _norm(module: nn.Module) -> RmsNorm | None:
    """The same norm in fewer operations, if it is one by the root of the mean square."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or not isinstance(epsilon, float) or getattr(module, "bias", None) is not None:
        return None
    x = torch.linspace(-3, 5, 4 * weight.shape[0]).sin().view(1, 4, -1)
    for scale in (weight, 1 + weight):  # Gemma's weights are differences from one.
        norm = RmsNorm(scale, epsilon)
        if torch.allclose(norm(x), module(x), rtol=1e-5, atol=1e-6):
            return norm
    return None


def _joined(parent: nn.Module, *names: str) -> nn.Linear:
    """Linear layers of one input as one."""
    layers: list[nn.Linear] = [parent.get_submodule(name) for name in names]  # type: ignore[misc]
    outputs = sum(layer.out_features for layer in layers)
    joined = nn.Linear(layers[0].in_features, outputs, bias=False, device="meta")
    joined.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
    if any(layer.bias is not None for layer in layers):
        biases = [layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
        joined.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=False)
    return joined


def _agrees(fused: FusedLayer, given: dict[str, Any], output: Tensor) -> bool:
    embeddings = given.get("position_embeddings")
    if not isinstance(embeddings, tuple) or len(embeddings) != 2:
        return False
    try:
        found = fused(**given)
    except (RuntimeError, TypeError, ValueError):
        return False
    size = float((output - given["hidden_states"]).abs().max())
    # A NaN compares false.
    return float((found - output).abs().max()) <= _TOLERANCE * size


def _parts(name: str, layer: nn.Module) -> LayerParts:
    def places(module: str, *names: str) -> list[tuple[str, slice]]:
        found, first = [], 0
        for part in names:
            stop = first + int(getattr(layer.get_submodule(f"{module}.{part}"), "out_features"))  # noqa: B009
            found.append((f"{name}.{module}.{part}", slice(first, stop)))
            first = stop
        return found

    return {
        f"{name}.qkv_proj": places("self_attn", "q_proj", "k_proj", "v_proj"),
        f"{name}.o_proj": places("self_attn", "o_proj"),
        f"{name}.gate_up_proj": places("mlp", "gate_proj", "up_proj"),
        f"{name}.down_proj": places("mlp", "down_proj"),
    }
