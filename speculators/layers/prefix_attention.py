"""Attention of each anchor over the depth-0 keys up to its own.

    attend = prefix_attention(place_N, spans, tokens)       # once per row, for all depths
    attended_ANV, log_sum_exp_AN = attend(q_AND, key_APD, value_APV, scale)

The caller merges in the chain's own keys by log-sum-exp. On a CPU, attention is dense and computed
sequence by sequence, which is fastest up to a few thousand tokens; memory for backward grows with
the square of each sequence's length, not of the row's. On a GPU, flex attention is used, and memory
is linear. torch has no backward for flex attention on a CPU, so only its forward is tested there.

Shapes: B batch of 1, N anchors, P tokens, A heads, D dims of a query or key, V dims of a value.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Queries and keys per block of flex attention's mask."""

MOST_COMPILATIONS = 64
"""Limit on the kernels of a process, one for each kind of row: dtype, with or without gradients,
one or several blocks of anchors. Eight (torch's default) are not enough for short responses."""

Attend = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


class Span(NamedTuple):
    """Index ranges of one packed sequence's tokens and anchors."""

    token_start: int
    token_end: int
    anchor_start: int
    anchor_end: int


def prefix_attention(place_N: Tensor, spans: list[Span], tokens: int) -> Attend:
    """The anchors' attention function: flex on a GPU, otherwise dense.

    Each anchor attends to the tokens up to its own, whose index is in `place_N`.
    """
    flex = place_N.is_cuda and spans
    return FlexPrefix(place_N, spans, tokens) if flex else DensePrefix(place_N, spans)


class DensePrefix:
    """Dense attention: computes all scores of a sequence at once."""

    def __init__(self, place_N: Tensor, spans: list[Span]):
        self.place_N = place_N
        self.spans = spans

    def __call__(
        self, q_AND: Tensor, key_APD: Tensor, value_APV: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        outs = []
        log_sum_exps = []
        for span in self.spans:
            tokens = slice(span.token_start, span.token_end)
            anchors = slice(span.anchor_start, span.anchor_end)
            score_ANP = torch.matmul(
                q_AND[:, anchors] * scale, key_APD[:, tokens].transpose(1, 2)
            ).float()
            token_P = torch.arange(span.token_start, span.token_end, device=self.place_N.device)
            score_ANP = score_ANP.masked_fill(token_P > self.place_N[anchors, None], float("-inf"))
            log_sum_exp_AN = score_ANP.logsumexp(-1)
            probability_ANP = (score_ANP - log_sum_exp_AN[..., None]).exp().to(value_APV.dtype)
            outs.append(torch.matmul(probability_ANP, value_APV[:, tokens]))
            log_sum_exps.append(log_sum_exp_AN)
        return torch.cat(outs, dim=1), torch.cat(log_sum_exps, dim=1)


class FlexPrefix:
    """Flex attention: skips blocks that no anchor attends to; keeps no scores."""

    def __init__(self, place_N: Tensor, spans: list[Span], tokens: int):
        from torch.nn.attention.flex_attention import BlockMask

        device = place_N.device
        # The mask needs only each anchor's first and last token, since the tokens of a sequence are
        # consecutive.
        start_N = torch.cat(
            [torch.full((s.anchor_end - s.anchor_start,), s.token_start) for s in spans]
        ).to(device)
        partial_QK, full_QK = _blocks(start_N, place_N, tokens)
        self.mask = BlockMask.from_kv_blocks(
            *_listed(partial_QK),
            *_listed(full_QK),
            BLOCK_SIZE=BLOCK,
            mask_mod=lambda b, h, n, p: (p >= start_N[n]) & (p <= place_N[n]),
            seq_lengths=(len(place_N), tokens),
        )

    def __call__(
        self, q_AND: Tensor, key_APD: Tensor, value_APV: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        attend = _compiled() if q_AND.is_cuda else _flex_attention
        small = _needs_small_tiles(q_AND.dtype, q_AND.device)
        batch = (q_AND[None], key_APD[None], value_APV[None])
        out, aux = attend(*batch, mask=self.mask, scale=scale, small=small)
        return out[0], aux.lse[0]


def _flex_attention(
    query_BAND: Tensor,
    key_BAPD: Tensor,
    value_BAPV: Tensor,
    *,
    mask: "BlockMask",
    scale: float,
    small: bool,
) -> Any:
    """Flex attention with its log-sum-exp; `small` selects `small_tiles`.

    The tiles are literals of the compiled code: numbers from outside would become symbols.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    # torch's type of these options lacks the prefixes `fwd_` and `bwd_`.
    options: Any = small_tiles(query_BAND.dtype) if small else None
    # The kernel scales its float32 scores; scaling a bf16 query would round it again.
    return flex_attention(
        query_BAND,
        key_BAPD,
        value_BAPV,
        block_mask=mask,
        scale=scale,
        return_aux=AuxRequest(lse=True),
        kernel_options=options,
    )


def compiled_flex_attention(backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """Flex attention, compiled for each kind of row, at most `MOST_COMPILATIONS` times.

    Past torch's limit of compilations, flex attention runs uncompiled and stores all scores: 550 GB
    for 32,768 tokens and 128 heads. `fullgraph` raises `FailOnRecompileLimitHit` instead.
    """
    compiled: Callable[..., Any] = torch.compile(  # type: ignore[call-overload]
        _flex_attention,
        backend=backend,
        dynamic=True,
        fullgraph=True,
        recompile_limit=MOST_COMPILATIONS,  # missing in torch's overloads
    )
    return compiled


_compiled = functools.cache(compiled_flex_attention)


@functools.cache
def _needs_small_tiles(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    properties: Any = torch.cuda.get_device_properties(device)  # its type lacks the attribute
    return bool(properties.shared_memory_per_block_optin < least_shared_memory(dtype))


def least_shared_memory(dtype: torch.dtype) -> int:
    """Bytes of shared memory per block with which torch's own tiles fit.

    For heads of 64 to 192 dims, Triton 3.9 allocates with the tiles for compute capability 8.x up
    to 280,832 bytes in float32 and 103,936 in bfloat16. The limits are 166,912 bytes for an A100,
    and 101,376 for A10, L4, RTX 3090, 4090 and 5090. An H100's tiles need up to 182,528 of 232,448.
    """
    return 200_000 if dtype == torch.float32 else 128_000


def small_tiles(dtype: torch.dtype) -> dict[str, Any]:
    """Tiles that need at most 65,536 bytes in float32 and 86,016 in bfloat16."""
    if dtype == torch.float32:
        # Torch's tiles for backward in float32 are small on all GPUs.
        return {"fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32, "fwd_num_stages": 1, "fwd_num_warps": 4}
    return {
        "fwd_BLOCK_M": 64,
        "fwd_BLOCK_N": 32,
        "fwd_num_stages": 2,
        "fwd_num_warps": 4,
        "bwd_BLOCK_M1": 64,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 64,
        "bwd_BLOCK_N2": 64,
        "bwd_num_stages": 1,
        "bwd_num_warps": 4,
    }


def _blocks(start_N: Tensor, place_N: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Masks [query blocks, key blocks] of the partially and the fully allowed blocks.

    They depend only on the minimum and maximum of `start_N` and of `place_N` in each query block,
    so nothing of size N x P is computed. A key block that lies between two sequences' prefixes may
    be listed unnecessarily; `mask_mod` then masks it out.
    """
    first_K = torch.arange(0, tokens, BLOCK, device=place_N.device)
    last_K = (first_K + BLOCK - 1).clamp(max=tokens - 1)
    low_start_Q, high_start_Q = _extremes(start_N)
    low_place_Q, high_place_Q = _extremes(place_N)
    some_QK = (last_K >= low_start_Q[:, None]) & (first_K <= high_place_Q[:, None])
    all_QK = (first_K >= high_start_Q[:, None]) & (last_K <= low_place_Q[:, None])
    # An incomplete last block needs `mask_mod`.
    all_QK &= last_K - first_K == BLOCK - 1
    return some_QK & ~all_QK, all_QK


def _extremes(values_N: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each block, padded with the last value."""
    blocks_QB = torch.cat([values_N, values_N[-1:].expand(-len(values_N) % BLOCK)]).view(-1, BLOCK)
    return blocks_QB.amin(1), blocks_QB.amax(1)


def _listed(wanted_QK: Tensor) -> tuple[Tensor, Tensor]:
    """BlockMask's inputs: counts of wanted blocks, and all indices, wanted ones first."""
    order_QK = wanted_QK.int().argsort(dim=1, descending=True, stable=True)
    return wanted_QK.sum(1).int()[None, None], order_QK.int()[None, None]
