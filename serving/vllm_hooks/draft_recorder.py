"""Records the drafts of an engine's drafter, step by step, for draft parity.

    with open_engine(target, settings, drafting, extension=DRAFT_EXTENSION) as engine:
        engine.llm.collective_rpc("drafts_start"); engine.llm.generate(...)
        of_ranks = engine.llm.collective_rpc("drafts_stop")

The engine must be eager, because no Python runs in a CUDA graph. Written for both model runners
of vLLM 0.32: V1 has a `drafter`, and V2 has a `speculator` with different signatures.

Shapes: B requests of a step, K depths, N tokens of a step.
"""

import inspect
from typing import Any

import torch

from outrider.serving.vllm_hooks.capture_extension import CaptureExtension, external_id

DRAFT_EXTENSION = "outrider.serving.vllm_hooks.draft_recorder.DraftExtension"


class DraftExtension(CaptureExtension):
    """Adds methods to vLLM's worker that record drafts."""

    def drafts_start(self) -> None:
        """Records every proposal from now on."""
        self._drafts_recorder = recorder_of(self.model_runner)

    def drafts_stop(self) -> list[dict[str, Any]] | None:
        """Ends the recording and returns the proposals in order.

        Each has `request_id`, `anchor` (index of the last token that the target has read),
        `next_token` (the token that it then sampled, at anchor + 1), `drafts` (from anchor + 2 on)
        and `logprobs` (of the drafts, under the drafter, at temperature 1). Proposals after each
        chunk of an unfinished prompt are included. Returns None on a rank without a drafter.
        """
        return None if self._drafts_recorder is None else self._drafts_recorder.stop()


class DraftRecorder:
    """Wraps the two methods with which a drafter proposes and samples drafts.

    This class is for the `drafter` of model runner V1.
    """

    sampling = "_sample_draft_tokens"
    """Name of the method that samples the drafts."""

    def __init__(self, runner: Any, drafter: Any) -> None:
        """Records every proposal from now on."""
        self.runner = runner
        self.drafter = drafter
        self._logprobs: list[torch.Tensor] | None = None  # of the proposal in progress
        self._records: list[dict[str, Any]] = []
        self._propose = drafter.propose
        self._sample = getattr(drafter, self.sampling)
        self._signature = inspect.signature(self._propose)
        drafter.propose = self._proposed
        setattr(drafter, self.sampling, self._sampled)

    def stop(self) -> list[dict[str, Any]]:
        """Ends the recording and returns the proposals."""
        del self.drafter.propose
        delattr(self.drafter, self.sampling)
        return self._records

    def _proposed(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._signature.bind(*args, **kwargs).arguments
        if arguments.get("dummy_run"):  # an idle data-parallel rank
            return self._propose(*args, **kwargs)
        # Read before the call, which advances positions and metadata in place.
        request_ids, anchors, next_tokens = self.proposal_batch(arguments)
        logprobs = self._logprobs = []
        drafts_BK = self._propose(*args, **kwargs)
        self._logprobs = None
        # V2's buffer has extra columns, which are stale.
        drafts_per_request = arguments.get("num_speculative_tokens")
        depths = drafts_BK.shape[-1] if drafts_per_request is None else int(drafts_per_request)
        if not depths:
            return drafts_BK
        if sum(map(len, logprobs)) != drafts_BK[:, :depths].numel():
            raise RuntimeError(
                f"{sum(map(len, logprobs))} of {drafts_BK[:, :depths].numel()} drafts were sampled"
                " in Python; drafts can be recorded only with serving.engine.mode: eager"
            )
        if len(logprobs) == depths:
            logprobs_BK = torch.stack(logprobs, dim=1)
        else:  # a parallel drafter samples all depths at once, ordered by request
            logprobs_BK = torch.cat(logprobs).view(-1, depths)
        columns = (anchors, next_tokens, drafts_BK[:, :depths], logprobs_BK)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for request_id, (anchor, token, drafts_K, logprobs_K) in zip(
            request_ids, rows, strict=True
        ):
            self._records.append(
                {
                    "request_id": external_id(request_id),
                    "anchor": anchor,
                    "next_token": token,
                    "drafts": drafts_K,
                    "logprobs": logprobs_K,
                }
            )
        return drafts_BK

    def _sampled(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Samples one depth or all; records log-probabilities from the head."""
        result = self._sample(hidden_states, *args, **kwargs)
        if self._logprobs is None:
            return result
        drafts_B = result[0] if isinstance(result, tuple) else result
        logits_BV = self.logits(hidden_states, *args, **kwargs).float()
        self._logprobs.append(logits_BV.log_softmax(-1).gather(-1, drafts_B.long()[:, None])[:, 0])
        return result

    def proposal_batch(
        self, arguments: dict[str, Any]
    ) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """Returns request ids, anchors [B] and next tokens [B] of a proposal."""
        rows_B = arguments.get("token_indices_to_sample")
        if rows_B is None:
            rows_B = arguments["common_attn_metadata"].query_start_loc[1:] - 1
        anchors_B = arguments["target_positions"][rows_B.long()]
        return self.runner.input_batch.req_ids, anchors_B, arguments["next_token_ids"].clone()

    def logits(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The drafter's logits [B, V]."""
        logits_BV: torch.Tensor = self.drafter.model.compute_logits(hidden_states)
        return logits_BV


class V2Recorder(DraftRecorder):
    """Records the `speculator` of model runner V2.

    V2 does not wait for the number of rejected drafts, so a step's tokens include rejected drafts.
    """

    sampling = "sample_draft"

    def proposal_batch(
        self, arguments: dict[str, Any]
    ) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """Reads the batch like vLLM's `_prepare_prefill_inputs_kernel`.

        A request that sampled nothing is still in prefill; its prompt contains the next token.
        """
        # vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py, lines 697 to 712
        batch = arguments["input_batch"]
        slots_B = batch.idx_mapping[: batch.num_reqs].long()
        ends_B = batch.query_start_loc[1 : batch.num_reqs + 1]
        last_B = (ends_B - arguments["num_rejected"][: batch.num_reqs] - 1).long()
        next_B = torch.where(
            arguments["num_sampled"][: batch.num_reqs] > 0,
            arguments["last_sampled"].flatten()[slots_B],
            arguments["next_prefill_tokens"][0, slots_B].long(),
        )
        return batch.req_ids, batch.positions[last_B], next_B

    def logits(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The speculator's logits [B, V], from its own method."""
        step = kwargs.get("spec_step_idx", 0)
        logits_BV: torch.Tensor = self.drafter.compute_draft_logits(hidden_states, step)
        return logits_BV


class WalkRecorder(V2Recorder):
    """Records a `speculator` that computes all depths at once and samples them in order.

    Its drafts are greedy: each has the largest logit in the draft vocabulary (size D).
    """

    sampling = "_sample_logits"

    def _sampled(self, *args: Any, **kwargs: Any) -> Any:
        """Samples one depth from its logits [B, D], which are the first argument."""
        if self._logprobs is not None:
            self._logprobs.append(args[0].float().log_softmax(-1).amax(-1))
        return self._sample(*args, **kwargs)


def recorder_of(runner: Any) -> DraftRecorder | None:
    """Starts recording a model runner's drafts; None on ranks without a drafter."""
    if hasattr(runner, "speculator"):  # V2; None on pipeline stages without a drafter
        if runner.speculator is None:
            return None
        walks = hasattr(runner.speculator, WalkRecorder.sampling)
        return (WalkRecorder if walks else V2Recorder)(runner, runner.speculator)
    return DraftRecorder(runner, runner.drafter) if hasattr(runner, "drafter") else None
