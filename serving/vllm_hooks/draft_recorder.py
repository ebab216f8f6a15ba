"""What the engine's drafter drafted, step by step: for comparing the trainer's unroll with the engine that serves it.

with open_engine(target, engine, speculator_dir, k, extension=DRAFT_EXTENSION) as engine:
    engine.llm.collective_rpc("drafts_start"); engine.llm.generate(...)
    (drafts, *_) = engine.llm.collective_rpc("drafts_stop")
"""

import inspect
from typing import Any

import torch

from outrider.serving.vllm_hooks.capture_extension import CaptureExtension, external_id
from outrider.serving.vllm_hooks.drafter_swap import DrafterExtension

DRAFT_EXTENSION = "outrider.serving.vllm_hooks.draft_recorder.DraftExtension"


class DraftExtension(CaptureExtension, DrafterExtension):
    """Methods that vLLM's worker gains beside those of the capture and of the exchange of drafters."""

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
        """Proposals in order: `request_id`, `anchor` (index of the last token that the target has read), `next_token` (the one
        that it said then, at anchor + 1), `drafts` (those for anchor + 2 and on) and `logprobs` (of the drafts, under the drafter, at
        temperature 1). A prompt's unfinished chunks are among them.
        """
        self.model_runner.drafter.propose = self._drafts_wrapped
        self.model_runner.drafter._sample_draft_tokens = self._drafts_sample
        return self._drafts

    def _drafts_propose(self, *args: Any, **kwargs: Any) -> Any:
        given = self._drafts_signature.bind(*args, **kwargs).arguments
        rows = given.get("token_indices_to_sample")
        if rows is None:
            rows = given["common_attn_metadata"].query_start_loc[1:] - 1
        # Taken before the call, which moves positions and metadata on in place.
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
        """One depth's drafts, and their log-probabilities from the drafter's own head."""
        drafts, probabilities = self._drafts_sample(hidden_states, *args)
        logits_BV = self.model_runner.drafter.model.compute_logits(hidden_states).float()
        self._drafts_logprobs.append(
            logits_BV.log_softmax(-1).gather(-1, drafts.long()[:, None])[:, 0]
        )
        return drafts, probabilities
