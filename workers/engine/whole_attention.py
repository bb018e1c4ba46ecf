"""Attention over whole sequences by its definition: what reference values are computed with."""

from __future__ import annotations

import torch
from torch import Tensor

from workers.engine.attention import LayerOptions, pack_groups, plain_attention


def attend_to(query: Tensor, keys: Tensor, values: Tensor, start: int, options: LayerOptions) -> Tensor:
    """Attention of a sequence's tokens from position `start` on.

    Args:
        query: `[count, heads, width]`.
        keys: `[start + count, kv_heads, width]`.
        values: `[start + count, kv_heads, value_width]`.

    Returns:
        `[count, heads, value_width]`, contiguous.
    """
    packed = pack_groups(query, keys.shape[1])
    count, kv_heads, group, width = packed.shape
    places = torch.arange(start, start + count, device=query.device)[:, None]
    seen = torch.arange(start + count, device=query.device)
    hidden = seen > places
    if options.window is not None:
        hidden |= seen <= places - options.window
    mask = torch.zeros(count, start + count, device=query.device).masked_fill_(hidden, float("-inf"))
    sinks = None if options.sinks is None else options.sinks.view(kv_heads, group).repeat(1, count)
    # The queries of all tokens, and of the heads that share keys, as the rows of one product.
    answer = plain_attention(
        packed.permute(1, 0, 2, 3).reshape(1, kv_heads, count * group, width),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        mask.repeat_interleave(group, dim=0),
        options.scale,
        options.softcap,
        sinks,
    )
    unpacked = answer.view(kv_heads, count, group, -1).permute(1, 0, 2, 3)
    # Without groups that is a view, and models take it for one piece of memory.
    return unpacked.reshape(count, kv_heads * group, -1).contiguous()


class WholeAttention:
    """An `AttentionBatch` whose tokens are one sequence from its first token on. Keeps nothing."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        return attend_to(query, key, value, 0, options)
