"""Flex attention over the prefix: values, compilations and tile sizes.

torch has no backward of flex attention on a CPU, so only its forward is compared with the dense
one.
"""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit

from outrider.data.features.feature_store import SequenceLength
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
from outrider.training.packing import TrainingSample, make_samples, plan_epoch
from tests.shipped_traffic import token_ids, with_token_ids
from tests.speculators.layers.flex_kernels import Direction, shared_bytes, tiles_of

HEADS, D, V = 2, 24, 16

SHARED_MEMORY = {
    (8, 0): 166_912,  # A100
    (8, 6): 101_376,  # A10, RTX 3090
    (8, 9): 101_376,  # L4, L40S, RTX 4090
    (9, 0): 232_448,  # H100, H200
    (10, 0): 232_448,  # B200
    (12, 0): 101_376,  # RTX 5090
}
"""Bytes per block by compute capability."""

Tiles = tuple[int, ...]
WIDTHS = (64, 96, 128, 192)
OF_8X: dict[torch.dtype, tuple[Tiles, ...]] = {
    torch.float32: ((128, 32, 3, 4), (64, 64, 3, 4), (128, 32, 3, 4), (64, 64, 3, 4)),
    torch.bfloat16: ((128, 64, 3, 4), (64, 64, 3, 4), (128, 64, 3, 8), (128, 32, 2, 8)),
}
FORWARD: dict[tuple[int, int], dict[torch.dtype, tuple[Tiles, ...]]] = {
    (8, 0): OF_8X,
    (8, 6): OF_8X,
    (8, 9): OF_8X,
    (9, 0): {
        torch.float32: ((128, 32, 3, 4), (64, 64, 3, 4), (32, 64, 3, 4), (32, 64, 1, 8)),
        torch.bfloat16: ((128, 128, 3, 4), (64, 64, 3, 4), (128, 64, 3, 8), (64, 64, 3, 4)),
    },
    (10, 0): {
        torch.float32: ((128, 32, 3, 4), (64, 64, 3, 4), (32, 64, 3, 4), (32, 64, 2, 4)),
        torch.bfloat16: ((128, 128, 3, 4), (64, 64, 3, 4), (128, 64, 3, 8), (128, 128, 1, 8)),
    },
    (12, 0): {
        torch.float32: ((128, 32, 2, 4), (64, 64, 3, 4), (128, 32, 2, 4), (64, 64, 3, 4)),
        torch.bfloat16: ((128, 64, 2, 4), (64, 64, 3, 4), (128, 64, 2, 8), (64, 64, 3, 4)),
    },
}
"""Torch's tiles by width: BLOCK_M, BLOCK_N, stages, warps."""
SQUARE = (64, 64, 64, 64)
WIDE = (64, 128, 128, 64)
BACKWARD: dict[tuple[int, int], tuple[Tiles, ...]] = {
    (8, 0): 4 * ((*SQUARE, 2, 4),),
    (8, 6): ((*SQUARE, 2, 4), (*SQUARE, 2, 4), (*SQUARE, 3, 4), (*SQUARE, 2, 4)),
    (8, 9): 4 * ((*SQUARE, 2, 4),),
    (9, 0): (*3 * ((*WIDE, 3, 8),), (*SQUARE, 2, 4)),
    (10, 0): (*3 * ((*WIDE, 3, 4),), (*SQUARE, 1, 8)),
    (12, 0): ((*SQUARE, 2, 4), (*SQUARE, 2, 4), (*SQUARE, 1, 4), (*SQUARE, 1, 4)),
}
"""The same in bfloat16: BLOCK_M1, N1, M2, N2, stages, warps."""


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
    """A backend that counts compilations and runs; it runs graphs, or returns zeros instead."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.runs = 0
        self.zeros: tuple[Tensor, Tensor] | None = None
        """Output and log-sum-exp [1, A, N, V] and [1, A, N] to return."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]):
        self.graphs.append(graph)

        def run(*values):
            self.runs += 1
            return graph.forward(*values) if self.zeros is None else self.zeros

        return run


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """Compiles flex attention on this CPU, also where torch has no gradient for it."""
    torch._dynamo.reset()
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    counted = Compilations()
    monkeypatch.setattr(module, "_flex_attention", compiled_flex_attention(counted))
    return counted


def attend(prefix: FlexPrefix, anchors: int, tokens: int, dtype: torch.dtype, grad: bool) -> None:
    shapes = [(anchors, D), (tokens, D), (tokens, V)]
    inputs = [torch.randn(HEADS, *shape, dtype=dtype, requires_grad=grad) for shape in shapes]
    with torch.set_grad_enabled(grad):
        prefix(*inputs, 0.3)


def attend_row(dtype: torch.dtype, grad: bool) -> None:
    """Attention over a row of two sequences."""
    place_N, spans, tokens = row((300, 40), 1)
    attend(FlexPrefix(place_N, spans, tokens), len(place_N), tokens, dtype, grad)


WORKLOADS = ("document_extraction", "resume_screening", "social_chat", "general")


def rows_of_traffic(workload: str, count: int, row_tokens: int) -> list[Any]:
    """The first rows of a training on shipped traffic, as `row` returns them."""
    lengths = [(len(p), len(c)) for p, c in map(token_ids, with_token_ids(workload))]
    sequences = [
        SequenceLength(str(number), prompt + completion, prompt)
        for number, (prompt, completion) in enumerate(lengths)
    ]
    samples, _ = make_samples(sequences, row_tokens)
    assert samples, f"no prompt of {workload} is shorter than {row_tokens} tokens"
    rows: list[Any] = []
    for epoch in itertools.count():
        for (packed,) in plan_epoch(samples, row_tokens, rows_per_step=1, seed=0, epoch=epoch):
            rows.append(row_of([samples[index] for index in packed]))
            if len(rows) == count:
                return rows
    raise AssertionError


def row_of(samples: list[TrainingSample]) -> tuple[Tensor, list[Span], int]:
    """The anchors and spans of packed samples."""
    places = []
    spans = []
    tokens = 0
    for sample in samples:
        anchors = range(tokens + sample.first_anchor, tokens + sample.length - 2)
        end = tokens + sample.length
        spans.append(Span(tokens, end, len(places), len(places) + len(anchors)))
        places += anchors
        tokens = end
    return torch.tensor(places), spans, tokens


def compiled_kinds(compilations: Compilations, rows: list[Any]) -> int:
    """Compilations for rows in parity, validation and training."""
    kinds = [
        (torch.float32, False),
        (torch.bfloat16, False),
        (torch.bfloat16, True),
        (torch.float32, True),
    ]
    for place_N, spans, tokens in rows:
        anchors = len(place_N)
        prefix = FlexPrefix(place_N, spans, tokens)
        for dtype, grad in kinds:
            compilations.zeros = (
                torch.zeros(1, HEADS, anchors, V, dtype=dtype),
                torch.zeros(1, HEADS, anchors),
            )
            attend(prefix, anchors, tokens, dtype, grad)
    assert compilations.runs == len(kinds) * len(rows)
    return len(compilations.graphs)


@pytest.mark.parametrize(
    "workload",
    [WORKLOADS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in WORKLOADS[1:])],
)
def test_rows_of_shipped_traffic_are_compiled(compilations, workload: str) -> None:
    """Past torch's limit, rows would run uncompiled, which stores all scores; see the module.

    200 rows of a training, where one holds several sequences and where it holds a short one.
    """
    long = rows_of_traffic(workload, 170, 2048)
    # Room for two tokens to draft and more, of a few of the sequences.
    shortest = min(len(prompt) for prompt, _ in map(token_ids, with_token_ids(workload))) + 20
    short = [row_ for tokens in (300, shortest) for row_ in rows_of_traffic(workload, 15, tokens)]
    assert compiled_kinds(compilations, [*long, *short]) <= module.MOST_COMPILATIONS // 2


def test_short_answers_need_more_compilations_than_torch_allows(compilations) -> None:
    """One block of anchors, several, and as many blocks of anchors as of tokens; of each dtype."""
    sizes = ((130, 4), (300, 6), (2048, 8))
    rows = [
        row_ for tokens, count in sizes for row_ in rows_of_traffic("social_chat", count, tokens)
    ]
    assert compiled_kinds(compilations, rows) > 8


def test_small_tiles_reach_the_kernel(compilations, monkeypatch) -> None:
    """As numbers, although all sizes of the graph are symbols."""
    monkeypatch.setattr(module, "_needs_small_tiles", lambda *_: True)
    for dtype in (torch.float32, torch.bfloat16):
        attend_row(dtype, True)
        nodes = compilations.graphs[-1].graph.nodes
        [call] = [node for node in nodes if "flex_attention" in str(node.target)]
        [options] = [value for value in call.args if isinstance(value, dict)]
        assert options.items() >= small_tiles(dtype).items()


def test_one_compilation_too_many_is_an_error(compilations, monkeypatch) -> None:
    attend_row(torch.float32, False)
    monkeypatch.setattr(module, "MOST_COMPILATIONS", 1)
    limited = compiled_flex_attention(compilations)
    monkeypatch.setattr(module, "_flex_attention", limited)
    with pytest.raises(FailOnRecompileLimitHit):
        attend_row(torch.bfloat16, False)


@pytest.fixture
def no_triton_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def tiles(dtype: torch.dtype, limit: int) -> dict:
    return {**small_tiles(dtype)} if limit < least_shared_memory(dtype) else {}


@pytest.mark.parametrize("capability", SHARED_MEMORY, ids=str)
def test_torch_s_tiles_are_those_that_were_compiled(capability: tuple[int, int]) -> None:
    """If they change, run `test_all_kernels_fit_all_gpus` and adapt `least_shared_memory`."""
    for dtype in (torch.float32, torch.bfloat16):
        backward = BACKWARD[capability]
        if dtype == torch.float32:
            backward = 4 * ((16, 16, 16, 16, 1, 4),)
        for direction, expected in (
            ("forward", FORWARD[capability][dtype]),
            ("backward", backward),
        ):
            found = (tiles_of(direction, capability, dtype, width, {}) for width in WIDTHS)
            assert tuple(tuple(tiles.values()) for tiles in found) == expected, direction


@pytest.mark.parametrize(
    ("direction", "dtype"),
    [
        ("forward", torch.float32),
        ("forward", torch.bfloat16),
        ("backward", torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("capability", "widths"), [((8, 9), (128, 128)), ((9, 0), (192, 128))], ids=str
)
def test_kernels_fit_a_gpu_of_24_gb_and_an_h100(
    no_triton_cache,
    capability: tuple[int, int],
    widths: tuple[int, int],
    direction: Direction,
    dtype: torch.dtype,
) -> None:
    """On the first, torch's own tiles need 152,064 bytes in float32 and 102,400 in bfloat16."""
    limit = SHARED_MEMORY[capability]
    assert shared_bytes(direction, capability, dtype, widths, tiles(dtype, limit)) <= limit


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
    assert small == {
        (8, 0): [torch.float32],
        (8, 6): both,
        (8, 9): both,
        (9, 0): [],
        (10, 0): [],
        (12, 0): both,
    }
