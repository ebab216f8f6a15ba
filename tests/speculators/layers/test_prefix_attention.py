"""Flex attention over the prefix: values, compilations and tile sizes.

torch has no backward of flex attention on a CPU, so only its forward is compared with the dense
one.
"""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit

from outrider.speculators.layers import prefix_attention as module
from outrider.speculators.layers.prefix_attention import (
    BLOCK,
    DensePrefix,
    FlexPrefix,
    Span,
    _blocks,
    _needs_small_tiles,
    compiled_flex_attention,
    least_shared_memory,
    small_tiles,
)
from tests.shipped_traffic import token_ids, with_token_ids
from tests.speculators.layers.flex_kernels import shared_bytes

HEADS, D, V = 2, 24, 16

SHARED_MEMORY = {(8, 0): 166_912, (8, 9): 101_376, (9, 0): 232_448, (12, 0): 101_376}
"""Bytes per block by compute capability: A100; L4 and RTX 4090 (A10 and 3090 too); H100; 5090."""


def row(lengths: tuple[int, ...], every: int) -> tuple[Tensor, list[Span], int]:
    """Packed sequences, each with an anchor at every `every`-th token of its last two thirds."""
    places = []
    spans = []
    tokens = 0
    for length in lengths:
        mine = list(range(tokens + length // 3, tokens + length - 2, every))
        spans.append(Span(tokens, tokens + length, len(places), len(places) + len(mine)))
        places += mine
        tokens += length
    return torch.tensor(places), spans, tokens


ROWS = [
    ((300, 40, 9, 500, 131), 1),
    ((700,), 3),
    ((BLOCK, BLOCK, BLOCK), 1),
    ((5, 6, 7), 1),
    ((900, 5), 2),
]


@pytest.mark.parametrize(("lengths", "every"), ROWS)
def test_flex_is_the_dense_attention(lengths: tuple[int, ...], every: int) -> None:
    torch.manual_seed(0)
    place_N, spans, tokens = row(lengths, every)
    q_AND = torch.randn(HEADS, len(place_N), D)
    key_APD = torch.randn(HEADS, tokens, D)
    value_APV = torch.randn(HEADS, tokens, V)
    expected = DensePrefix(place_N, spans)(q_AND, key_APD, value_APV, 0.3)
    found = FlexPrefix(place_N, spans, tokens)(q_AND, key_APD, value_APV, 0.3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("lengths", "every"), ROWS)
def test_blocks_leave_no_allowed_pair_out_and_claim_none_that_is_not(
    lengths: tuple[int, ...], every: int
) -> None:
    """The GPU kernel skips blocks that are not listed and does not apply the mask in full ones."""
    place_N, spans, tokens = row(lengths, every)
    start_N = torch.cat(
        [torch.full((s.anchor_end - s.anchor_start,), s.token_start) for s in spans]
    )
    token_P = torch.arange(tokens)
    allowed_NP = (token_P >= start_N[:, None]) & (token_P <= place_N[:, None])
    partial_QK, full_QK = _blocks(start_N, place_N, tokens)
    assert not (partial_QK & full_QK).any()
    some_QK = torch.zeros_like(full_QK)
    all_QK = torch.zeros_like(full_QK)
    for q, k in ((q, k) for q in range(full_QK.shape[0]) for k in range(full_QK.shape[1])):
        pairs = allowed_NP[q * BLOCK : (q + 1) * BLOCK, k * BLOCK : (k + 1) * BLOCK]
        some_QK[q, k] = pairs.any()
        all_QK[q, k] = pairs.all() and pairs.shape[1] == BLOCK
    assert not (some_QK & ~(partial_QK | full_QK)).any()
    assert torch.equal(full_QK, all_QK)


class Compilations:
    """A backend that runs graphs as they are, and counts compilations and runs."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]):
        self.graphs.append(graph)

        def run(*values):
            self.runs += 1
            return graph.forward(*values)

        return run


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """Compiles flex attention on this CPU, also where torch has no gradient for it."""
    torch._dynamo.reset()
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    counted = Compilations()
    monkeypatch.setattr(module, "_flex_attention", compiled_flex_attention(counted))
    return counted


def attend(place_N: Tensor, spans: list[Span], tokens: int, dtype: torch.dtype, grad: bool) -> None:
    shapes = [(len(place_N), D), (tokens, D), (tokens, V)]
    inputs = [torch.randn(HEADS, *shape, dtype=dtype, requires_grad=grad) for shape in shapes]
    with torch.set_grad_enabled(grad):
        FlexPrefix(place_N, spans, tokens)(*inputs, 0.3)


def shipped_rows(count: int, row_tokens: int) -> list[tuple[Tensor, list[Span], int]]:
    """Packed rows of short answers, whose anchors fill one block or several."""
    exchanges = ((len(p), len(c)) for p, c in map(token_ids, with_token_ids("social_chat")))
    rows = []
    for _ in range(count):
        places = []
        spans = []
        tokens = 0
        for prompt, completion in exchanges:
            start = tokens + prompt - 1
            end = tokens + prompt + completion - 2
            spans.append(Span(tokens, end + 2, len(places), len(places) + end - start))
            places += range(start, end)
            tokens = end + 2
            if tokens > row_tokens:
                break
        rows.append((torch.tensor(places), spans, tokens))
    return rows


def test_every_kind_of_row_of_short_answers_is_compiled(compilations) -> None:
    """Past torch's 8 compilations, rows would run uncompiled, with a warning only."""
    rows = [*shipped_rows(12, 1), *shipped_rows(6, 600), *shipped_rows(6, 300)]
    kinds = [*itertools.product((torch.float32, torch.bfloat16), (False, True))]
    for dtype, grad in kinds:
        for row_ in rows:
            attend(*row_, dtype, grad)
    assert compilations.runs == len(kinds) * len(rows)
    assert 8 < len(compilations.graphs) <= module.MOST_COMPILATIONS // 2


def test_small_tiles_reach_the_kernel(compilations, monkeypatch) -> None:
    """As numbers, although all sizes of the graph are symbols."""
    monkeypatch.setattr(module, "_needs_small_tiles", lambda *_: True)
    for dtype in (torch.float32, torch.bfloat16):
        attend(*row((300, 40), 1), dtype, True)
        nodes = compilations.graphs[-1].graph.nodes
        [call] = [node for node in nodes if "flex_attention" in str(node.target)]
        [options] = [value for value in call.args if isinstance(value, dict)]
        assert options.items() >= small_tiles(dtype).items()


def test_one_compilation_too_many_is_an_error(compilations, monkeypatch) -> None:
    attend(*row((300, 40), 1), torch.float32, False)
    monkeypatch.setattr(module, "MOST_COMPILATIONS", 1)
    limited = compiled_flex_attention(compilations)
    monkeypatch.setattr(module, "_flex_attention", limited)
    with pytest.raises(FailOnRecompileLimitHit):
        attend(*row((300, 40), 1), torch.bfloat16, False)


@pytest.fixture
def no_triton_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def tiles(dtype: torch.dtype, limit: int) -> dict:
    return {**small_tiles(dtype)} if limit < least_shared_memory(dtype) else {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_forward_kernel_of_128_dims_fits_a_gpu_of_24_gb(no_triton_cache, dtype) -> None:
    """Torch's tiles need 152,064 bytes in float32 and 102,400 in bfloat16."""
    limit = SHARED_MEMORY[8, 9]
    assert shared_bytes("forward", (8, 9), dtype, (128, 128), tiles(dtype, limit)) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_MEMORY, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", [(64, 64), (96, 96), (128, 128), (192, 128)], ids=str)
def test_all_kernels_fit_all_gpus(no_triton_cache, capability, dtype, widths) -> None:
    """With a tenth to spare on small GPUs, since other versions of Triton allocate otherwise."""
    limit = SHARED_MEMORY[capability]
    options = tiles(dtype, limit)
    usable = 0.9 * limit if options else limit
    for direction in ("forward", "backward"):
        assert shared_bytes(direction, capability, dtype, widths, options) <= usable


def test_each_gpu_has_the_tiles_that_fit_it(monkeypatch) -> None:
    """Torch's own, except on small GPUs, and on an A100 in float32 (96 and 192 dims)."""
    small = {}
    for number, (capability, limit) in enumerate(SHARED_MEMORY.items(), 100):  # cached by device
        properties = SimpleNamespace(shared_memory_per_block_optin=limit)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, p=properties: p)
        device = torch.device("cuda", number)
        small[capability] = [
            dtype for dtype in (torch.float32, torch.bfloat16) if _needs_small_tiles(dtype, device)
        ]
    both = [torch.float32, torch.bfloat16]
    assert small == {(8, 0): [torch.float32], (8, 9): both, (9, 0): [], (12, 0): both}
