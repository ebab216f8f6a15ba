"""FP8 states: what is lost is bounded, what is kept is counted, and a store says which it is."""

import math

import torch

from outrider.data.config import CaptureConfig
from outrider.data.features.capture import capture_ids
from outrider.data.features.feature_store import decode, encode
from outrider.speculators.features import FeatureSpec, FeatureStream


def states(tokens: int, hidden: int, seed: int = 0) -> torch.Tensor:
    """States like a target's: entries of about 1, a few channels 30 times larger, uneven tokens."""
    torch.manual_seed(seed)
    h_TH = torch.randn(tokens, hidden) * torch.logspace(-3, 3, tokens)[:, None]
    h_TH[:, :3] *= 30
    return h_TH.bfloat16()


def test_each_value_is_off_by_at_most_half_a_step_of_e4m3():
    """Half a step of a 3-bit mantissa is 1/16 of the value; below 2^-6 (scaled to 448) it is 2^-9.

    bf16 adds 2^-9 of the value.
    """
    h_TH = states(64, 256)
    back_TH = decode(encode(h_TH, "fp8"))
    assert back_TH.dtype == torch.bfloat16
    largest_T1 = h_TH.float().abs().amax(-1, keepdim=True)
    bound_TH = (h_TH.float().abs() / 16).maximum(
        largest_T1 / 448 * 2**-10
    ) + back_TH.float().abs() * 2**-8
    error_TH = (back_TH.float() - h_TH.float()).abs()
    assert (error_TH <= bound_TH).all()
    assert (error_TH > h_TH.float().abs() / 40).any(), "the bound would hold of anything"
    assert torch.equal(back_TH.abs().amax(-1), h_TH.abs().amax(-1)), (
        "each token's largest value is exact"
    )


def test_zeros_stay_zeros_and_what_is_not_finite_stays_so():
    h_TH = states(4, 32)
    h_TH[1] = 0
    h_TH[2, 5] = float("nan")
    h_TH[3, 6] = float("inf")
    back_TH = decode(encode(h_TH, "fp8"))
    assert torch.equal(back_TH[1], torch.zeros(32).bfloat16())
    assert not back_TH[2].isfinite().all() and not back_TH[3].isfinite().all()
    assert back_TH[0].isfinite().all()


def test_states_of_the_other_type_are_captured_anew(tmp_path):
    """The same sequences, another `capture.dtype`: nothing of the old store is taken for it."""

    class FakeEngine:
        prefills = 0

        class llm:
            class llm_engine:
                class model_config:
                    get_hidden_size = staticmethod(lambda: 256)

        def prefill(self, rows, streams, batch_tokens, positions):
            self.prefills += 1
            return (
                (row.row_id, {name: states(len(row.token_ids), 256) for name in streams}, None)
                for row in rows
            )

    engine, rows = FakeEngine(), [("a", [1, 2, 3, 4], 2)]
    for dtype, prefills in (("bf16", 1), ("bf16", 1), ("fp8", 2), ("fp8", 2)):
        store = capture_ids(engine, rows, tmp_path / "features", CaptureConfig(dtype=dtype))
        assert engine.prefills == prefills
        assert store.manifest["dtype"] == {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}[dtype]
    more = FeatureSpec((FeatureStream("layer_2", 256),))
    for features, prefills in ((more, 3), (more, 3), (FeatureSpec(()), 3)):
        store = capture_ids(
            engine, rows, tmp_path / "features", CaptureConfig(dtype="fp8"), features
        )
        assert engine.prefills == prefills  # a store with more streams serves a drafter of fewer
        assert store.spec.names == ("final_norm", "layer_2")
    assert math.isclose(
        store.read("a").hidden.float().norm(), states(4, 256).float().norm(), rel_tol=0.03
    )
