"""Records the drafts of an engine's drafter, step by step, for draft parity.

with open_engine(target, engine, speculator_dir, k, extension=DRAFT_EXTENSION) as engine:
    engine.llm.collective_rpc("drafts_start"); engine.llm.generate(...)
    (drafts, *_) = engine.llm.collective_rpc("drafts_stop")

Written against vLLM 0.32, V1 model runner.
"""

import inspect
from typing import Any

import torch

from outrider.serving.vllm_hooks.capture_extension import CaptureExtension, external_id
from outrider.serving.vllm_hooks.drafter_swap import DrafterExtension

DRAFT_EXTENSION = "outrider.serving.vllm_hooks.draft_recorder.DraftExtension"


class DraftExtension(CaptureExtension, DrafterExtension):
    """Methods that vLLM's worker gains: recording, and those of capture and drafter swap."""

    def drafts_start(self) -> None:
        """Records every proposal from now on."""
        drafter = self.model_runner.drafter
        self._drafts: list[dict[str, Any]] = []
        self._drafts_wrapped = drafter.propose
        self._drafts_signature = inspect.signature(drafter.propose)
        self._drafts_sample = drafter._sample_draft_tokens
        drafter.propose = self._drafts_propose
        drafter._sample_draft_tokens = self._drafts_sampled

    def drafts_stop(self) -> list[dict[str, Any]]:
        """Ends the recording and returns the proposals in order.

        Each has `request_id`, `anchor` (index of the last token that the target has read),
        `next_token` (the token that it sampled then, at anchor + 1), `drafts` (for anchor + 2 and
        on) and `logprobs` (of the drafts, under the drafter, at temperature 1). Unfinished chunks
        of a prompt are included.
        """
        self.model_runner.drafter.propose = self._drafts_wrapped
        self.model_runner.drafter._sample_draft_tokens = self._drafts_sample
        return self._drafts

    def _drafts_propose(self, *args: Any, **kwargs: Any) -> Any:
        given = self._drafts_signature.bind(*args, **kwargs).arguments
        rows = given.get("token_indices_to_sample")
        if rows is None:
            rows = given["common_attn_metadata"].query_start_loc[1:] - 1
        # Read before the call, which advances positions and metadata in place.
        anchors = given["target_positions"][rows.long()].tolist()
        next_tokens = given["next_token_ids"].tolist()
        self._drafts_logprobs: list[torch.Tensor] = []
        drafts = self._drafts_wrapped(*args, **kwargs)
        logprobs_BK = torch.stack(self._drafts_logprobs, dim=1)
        for request_id, anchor, token, row, logprobs_K in zip(
            self.model_runner.input_batch.req_ids,
            anchors,
            next_tokens,
            drafts.tolist(),
            logprobs_BK.tolist(),
            strict=True,
        ):
            self._drafts.append(
                {
                    "request_id": external_id(request_id),
                    "anchor": anchor,
                    "next_token": token,
                    "drafts": row,
                    "logprobs": logprobs_K,
                }
            )
        return drafts

    def _drafts_sampled(self, hidden_states: torch.Tensor, *args: Any) -> Any:
        """One depth's drafts; records their log-probabilities from the drafter's head."""
        drafts, probabilities = self._drafts_sample(hidden_states, *args)
        logits_BV = self.model_runner.drafter.model.compute_logits(hidden_states).float()
        self._drafts_logprobs.append(
            logits_BV.log_softmax(-1).gather(-1, drafts.long()[:, None])[:, 0]
        )
        return drafts, probabilities
