"""vLLM's own n-gram lookups without an engine, and a literal walk of an engine with one.

    propose = V1Lookup(k=3, lengths=range(2, 5), most_tokens=512)
    propose([[5, 6, 7, 5, 6]])                            # [[7, 5, 6]]
    walked_steps([(token_ids, completion_start)], propose)    # steps of each response

    python -m tests.serving.vllm_hooks.v2_on_cpu \
        tests.speculators.kinds.ngram_in_vllm cases.json drafts.json

The last command runs the kernels of model runner V2 in Triton's interpreter. `cases` are [contexts,
k, shortest n-gram, longest n-gram]; the output has the drafts after each context.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

Propose = Callable[[Sequence[Sequence[int]]], list[list[int]]]
"""Drafts of one step for requests with these contexts; an empty context is a finished request."""


def settings_of(k: int, lengths: range, most_tokens: int, requests: int) -> Any:
    """What vLLM's lookups read of a `VllmConfig`."""
    speculative = SimpleNamespace(
        num_speculative_tokens=k,
        prompt_lookup_min=lengths.start,
        prompt_lookup_max=lengths.stop - 1,
    )
    return SimpleNamespace(
        speculative_config=speculative,
        model_config=SimpleNamespace(max_model_len=most_tokens),
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


class V1Lookup:
    """Method `ngram` of model runner V1."""

    def __init__(self, k: int, lengths: range, most_tokens: int) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        # It tries 1,024 requests when it starts.
        self.proposer = NgramProposer(settings_of(k, lengths, most_tokens, 1024))
        self.k = k

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        sampled = [list(context[-1:]) for context in contexts]
        token_ids_RT, length_R = padded(contexts, self.proposer.max_model_len)
        return self.proposer.propose(self.k, sampled, length_R, token_ids_RT)


class V1GPULookup:
    """Method `ngram_gpu` of model runner V1, its kernel in torch."""

    def __init__(self, k: int, lengths: range, most_tokens: int) -> None:
        self.k = k
        self.lengths = lengths
        self.most_tokens = most_tokens

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        from vllm.v1.spec_decode.ngram_proposer_gpu import NgramGPUKernel

        token_ids_RT, length_R = padded(contexts, self.most_tokens)
        # The compiled module's method reads nothing of the module.
        drafts_RK = NgramGPUKernel._find_first_and_extract_all_n_parallel(
            None,
            torch.from_numpy(token_ids_RT),
            torch.from_numpy(length_R),
            min_ngram_len=self.lengths.start,
            max_ngram_len=self.lengths.stop - 1,
            num_draft_tokens=self.k,
        )
        return [[token for token in row if token != -1] for row in drafts_RK.tolist()]


class V2Lookup:
    """Model runner V2's lookup, which both methods start; needs v2_on_cpu.py or a GPU."""

    def __init__(self, k: int, lengths: range, most_tokens: int, requests: int = 64) -> None:
        from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator

        settings = settings_of(k, lengths, most_tokens, requests)
        self.states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=torch.zeros(requests, most_tokens).int()),
            total_len=SimpleNamespace(gpu=torch.zeros(requests).int()),
        )
        self.speculator = NgramGPUSpeculator(settings, torch.device("cpu"), self.states)
        # The interpreter takes as long for a block of 256 tokens, vLLM's choice, as for all.
        self.speculator.block_l = 1 << (most_tokens - 1).bit_length()
        self.speculator.n_blocks = 1
        self.most_tokens = most_tokens

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        count = len(contexts)
        token_ids_RT, length_R = padded(contexts, self.most_tokens)
        self.states.all_token_ids.gpu[:count] = torch.from_numpy(token_ids_RT)
        self.states.total_len.gpu[:count] = torch.from_numpy(length_R)
        last = [context[-1] if len(context) else 0 for context in contexts]
        batch = SimpleNamespace(num_reqs=count, idx_mapping=torch.arange(count))
        unread = ("attn_metadata", "slot_mappings", "last_hidden_states", "aux_hidden_states")
        unread += ("num_rejected", "next_prefill_tokens", "temperature", "seeds")
        drafts_RK = self.speculator.propose(
            input_batch=batch,
            num_sampled=torch.from_numpy(length_R > 0).int(),
            last_sampled=torch.tensor(last),
            **dict.fromkeys(unread),
        )
        return drafts_RK.tolist()


def padded(
    contexts: Sequence[Sequence[int]], most_tokens: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The contexts as the model runners keep them: int32 [R, T], and their lengths."""
    token_ids_RT = np.zeros((len(contexts), most_tokens), np.int32)
    for row_T, context in zip(token_ids_RT, contexts, strict=True):
        row_T[: len(context)] = context
    return token_ids_RT, np.array([len(context) for context in contexts], np.int32)


def walked_steps(rows: Sequence[tuple[Sequence[int], int]], propose: Propose) -> list[int]:
    """Steps in which an engine writes each response, all of them at the same time.

    `rows` have the tokens of a prompt and its response, and where the response starts. The prefill
    delivers its first token. A step drafts, accepts the drafts that equal the response, and adds
    one token; the response ends the request.
    """
    steps = [0] * len(rows)
    known = [start + 1 for _, start in rows]
    while any(count < len(ids) for count, (ids, _) in zip(known, rows, strict=True)):
        running = [count < len(ids) for count, (ids, _) in zip(known, rows, strict=True)]
        contexts = [
            ids[:count] if runs else ids[:0]
            for runs, count, (ids, _) in zip(running, known, rows, strict=True)
        ]
        for number, drafts in enumerate(propose(contexts)):
            if not running[number]:
                continue
            ids, _ = rows[number]
            steps[number] += 1
            for draft in drafts:
                if known[number] == len(ids) or draft != ids[known[number]]:
                    break
                known[number] += 1
            known[number] += 1  # the target's own token
    return steps


def main() -> None:
    """Writes the drafts of V2's kernels for each case."""
    _, cases, out = sys.argv
    drafts = []
    for contexts, k, shortest, longest in json.loads(Path(cases).read_text()):
        propose = V2Lookup(k, range(shortest, longest + 1), most_tokens=512)
        drafts.append(propose(contexts))
    Path(out).write_text(json.dumps(drafts))


if __name__ == "__main__":
    main()
