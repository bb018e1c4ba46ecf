"""What torch's `varlen_attn` is documented to compute, in plain torch: the kernel itself needs a GPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import varlen


def varlen_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: varlen.AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Token by token, with the checks that flash attention 2 makes."""
    assert scale is not None
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k)
    lengths = cu_seq_k.diff().tolist()
    assert max_q == int(cu_seq_q.diff().max())
    assert max_k >= max(lengths)
    assert num_splits == 1
    assert seqused_k.tolist() == lengths
    assert seqused_k.dtype == block_table.dtype == torch.int32
    assert len(block_table) == len(lengths)
    assert key.shape[1] % 256 == 0
    assert enable_gqa == (query.shape[1] != key.shape[2])
    page = torch.arange(key.shape[1])
    slots = [
        (table.long()[:, None] * len(page) + page).flatten()[:used]
        for table, used in zip(block_table, lengths, strict=True)
    ]
    output, sums = _attend(query, key.flatten(0, 1), value.flatten(0, 1), cu_seq_q, slots, scale, window_size)
    assert return_aux is not None
    return output, sums


def extents_by_definition(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    lengths: Tensor,
    scale: float,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """The same of the operator beneath, for `attention_cuda.attend_extents`."""
    assert query_starts.dtype == key_starts.dtype == lengths.dtype == torch.int32
    assert len(query_starts) == len(key_starts) == len(lengths) + 1
    assert longest_query == int(query_starts.diff().max())
    assert longest_key >= int(lengths.max())
    assert window[1] == 0
    pairs = zip(key_starts.tolist(), lengths.tolist(), strict=False)
    slots = [torch.arange(start, start + used) for start, used in pairs]
    return _attend(query, keys, values, query_starts, slots, scale, window)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_starts: Tensor,
    slots: list[Tensor],
    scale: float,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp `[heads, tokens]`; `slots` are those of each sequence's keys."""
    output, sums = torch.empty_like(query), torch.empty(query.shape[1], query.shape[0])
    group = query.shape[1] // keys.shape[1]
    for index, places in enumerate(slots):
        first, stop = query_starts[index : index + 2].tolist()
        mine, theirs = (tensor[places].repeat_interleave(group, dim=1) for tensor in (keys, values))
        for token in range(first, stop):
            # Queries are aligned with the end of the keys.
            place = len(places) - (stop - token)
            low = 0 if window[0] < 0 else max(place - window[0], 0)
            high = len(places) if window[1] < 0 else place + window[1] + 1
            scores = torch.einsum("hd,khd->hk", query[token], mine[low:high]) * scale
            sums[:, token] = scores.logsumexp(-1)
            output[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), theirs[low:high])
    return output, sums
