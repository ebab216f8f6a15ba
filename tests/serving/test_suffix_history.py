"""Suffix lookup in an engine: its history, its tenants, and another history while it runs."""

import dataclasses
import itertools

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from outrider.common.errors import OutriderError
from outrider.serving.admin.live_flags import admin_token, live_environment
from outrider.serving.admin.replica import Replica, SwapOrder, SwapRefused
from outrider.serving.bundle.bundle import export_bundle
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.bundle.erase import erase_sessions
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig
from outrider.serving.engine import AskedRow, open_engine
from outrider.serving.hooked import SWAP_EXTENSION
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.drafts_file import DraftCountFile
from outrider.speculators.kinds.protocol import NO_DRAFT, Lookup
from outrider.speculators.kinds.suffix import FACTOR, SuffixLookup
from outrider.speculators.lookup_history import EarlierResponse
from tests.serving.in_process import swap

K = 8
TOKENS = 40


@dataclasses.dataclass
class Asking:
    """Sends requests and counts their drafts."""

    engine: object
    tokens: int

    def __call__(self, *prompts, salts):
        """Answers and numbers of drafted and accepted tokens of prompts sent together."""
        llm = self.engine.llm
        before = self._counts()
        sent = [
            TokensPrompt(prompt_token_ids=prompt) | ({"cache_salt": salt} if salt else {})
            for prompt, salt in zip(prompts, salts, strict=True)
        ]
        sampling = SamplingParams(temperature=0.0, max_tokens=self.tokens)
        outputs = llm.generate(sent, sampling, use_tqdm=False)
        drafted, accepted = (now - then for now, then in zip(self._counts(), before, strict=True))
        return [list(output.outputs[0].token_ids) for output in outputs], drafted, accepted

    def _counts(self):
        by_name = {metric.name: metric for metric in self.engine.llm.get_metrics()}
        names = ("draft", "accepted")
        return [by_name[f"vllm:spec_decode_num_{name}_tokens"].value for name in names]


def greedy_answers(engine, prompts):
    """The target's most likely response to each prompt [tokens]."""
    rows = [
        AskedRow(row_id=str(n), token_ids=ids, temperature=0.0, top_p=1.0, max_tokens=TOKENS)
        for n, ids in enumerate(prompts)
    ]
    return [np.array(answer, np.int32) for answer in engine.answer(rows)]


def greedy(server, prompts, fields=None):
    """The server's greedy completions of prompts that are sent together."""
    return complete(
        url=server.url,
        model=server.model_name,
        prompts=prompts,
        fields=fields,
        sampling=Sampling(temperature=0),
        max_tokens=TOKENS,
        concurrency=len(prompts),
    )


def replayed_steps(lookup, prompt, response, k):
    """The number of steps with drafts, which the engine counts, and that of all steps."""
    token_ids = np.array([*prompt, *response], np.int32)
    drafts_AK = SuffixLookup().drafts(token_ids, len(prompt), [k], lookup)[0]
    drafted = steps = anchor = 0
    while anchor < len(response) - 1:
        expected = response[anchor + 1 :]
        steps += 1
        drafted += bool(drafts_AK[anchor, 0] != NO_DRAFT)
        anchor += 1
        for draft, token_id in zip(drafts_AK[anchor - 1].tolist(), expected, strict=False):
            if draft != token_id:
                break
            anchor += 1
    return drafted, steps


def bundle_of(responses, folder, target, shared, settings=None):
    directory = SuffixLookup().prepare(responses, folder / "made", max_gb=1.0, shared=shared)
    drafting = Drafting(Speculator("suffix", directory, settings or {}), K)
    export_bundle(drafting, target, EngineConfig(), evidence={}, out_dir=folder / "bundle")
    return folder / "bundle"


@pytest.mark.engine
@pytest.mark.slow
def test_a_live_server_swaps_its_history_by_the_admin_route(engine, target, prompts, tmp_path):
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    (answer,) = greedy_answers(engine, prompts[:1])
    root = tmp_path / "releases"
    empty = bundle_of([], root / "empty", target, shared=True)
    full = bundle_of([EarlierResponse(answer, "s", "acme")], root / "full", target, shared=True)
    other = bundle_of([], root / "other", target, shared=True, settings={FACTOR: 2.0})
    drafting = Drafting(Speculator.from_name(empty), K)
    server = Server(target, EngineConfig(kv_cache_gb=0.25), drafting, log_path=tmp_path / "log")
    server._environment |= live_environment(
        [root], f"unix:{tmp_path}/admin.sock", tmp_path / "admin.token"
    )
    server.command += ["--worker-extension-cls", SWAP_EXTENSION]

    def accepted():
        before = server.counters()
        greedy(server, prompts[:1])
        return (server.counters() - before).accepted_tokens

    def swap_to(bundle):
        order = SwapOrder(directory=str(bundle), version="v", digest=bundle_digest(bundle))
        return replica.swap(order)

    with server:
        replica = Replica(f"unix:{tmp_path}/admin.sock", admin_token(tmp_path / "admin.token"))
        assert replica.status().kind == "suffix"
        without = accepted()
        swap_to(full)
        assert accepted() > without + 5
        assert replica.status().digest == bundle_digest(full)
        with pytest.raises(SwapRefused, match=FACTOR):
            swap_to(other)
        erase_sessions(full, ["s"])
        swap_to(full)
        assert accepted() == without


@pytest.mark.engine
@pytest.mark.slow
def test_a_server_takes_the_steps_that_replay_predicts_for_each_tenant(
    engine, target, prompts, tmp_path
):
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    answers = greedy_answers(engine, prompts[:2])
    tenants = ["acme", "umbrella"]
    history = [
        EarlierResponse(answer, "s", tenant)
        for answer, tenant in zip(answers, tenants, strict=True)
    ]
    kind = SuffixLookup()
    directory = kind.prepare(history, tmp_path / "made", max_gb=1.0, shared=False)
    assert kind.separates_tenants(directory)
    lookup = Lookup("suffix", history=kind.history(directory))
    drafting = Drafting(Speculator("suffix", directory), K)
    server = Server(target, EngineConfig(kv_cache_gb=0.25), drafting, log_path=tmp_path / "log")
    steps = {}
    with server:
        for row, tenant in itertools.product(range(2), [*tenants, ""]):
            fields = {"cache_salt": tenant} if tenant else {}
            (completion,) = greedy(server, [prompts[row]], [fields])
            of_tenant = dataclasses.replace(lookup, tenant=tenant)
            replayed, steps[row, tenant] = replayed_steps(
                of_tenant, prompts[row], completion.token_ids, K
            )
            assert completion.counters.drafts == replayed
    assert steps[0, "acme"] < steps[0, "umbrella"] <= steps[0, ""]
    assert steps[1, "umbrella"] < steps[1, "acme"] <= steps[1, ""]


@pytest.mark.engine
@pytest.mark.slow
def test_near_the_context_limit_a_server_takes_the_steps_that_replay_predicts(
    engine, target, prompts, tmp_path
):
    """One request near the limit takes no drafts from the others, and no tokens from their trees.

    The server can draft 24 tokens, and drafts 4.
    """
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    longest = max(map(len, prompts))
    limit = longest + TOKENS
    answers = greedy_answers(engine, prompts)
    history = [EarlierResponse(answer[: len(answer) // 2], "s", "") for answer in answers]
    kind = SuffixLookup()
    directory = kind.prepare(history, tmp_path / "made", max_gb=1.0, shared=True)
    lookup = Lookup("suffix", {FACTOR: 4.0}, kind.history(directory))
    speculator = Speculator("suffix", directory, {FACTOR: 4.0})
    file = DraftCountFile(tmp_path / "drafts.json")
    settings = EngineConfig(kv_cache_gb=0.25, max_model_len=limit, max_num_seqs=len(prompts))
    drafting = Drafting(speculator, 24, k_per_batch_size=((1, len(prompts), 24),))
    with Server(
        target, file.engine_settings(settings), drafting, log_path=tmp_path / "log"
    ) as server:
        file.draft(4)
        completions = greedy(server, prompts)
    for prompt, completion in zip(prompts, completions, strict=True):
        replayed, _ = replayed_steps(lookup, prompt, completion.token_ids, 4)
        # The last step before the limit has no room for drafts.
        assert replayed - 1 <= completion.counters.drafts <= replayed


@pytest.mark.engine
def test_a_history_is_loaded_at_the_start_kept_to_its_tenant_and_swapped(
    engine, target, prompts, tmp_path
):
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    acmes, later = greedy_answers(engine, prompts[:2])
    # With a second tenant, a request without salt is of none.
    other = EarlierResponse(np.array([5, 6, 7], np.int32), "t", "globex")
    own = bundle_of(
        [EarlierResponse(acmes, "s", "acme"), other], tmp_path / "own", target, shared=False
    )
    shared = bundle_of(
        [EarlierResponse(later, "s", "acme")], tmp_path / "shared", target, shared=True
    )
    speculator = Speculator.from_name(own)
    assert speculator.directory == own
    settings = EngineConfig(kv_cache_gb=0.25)
    with open_engine(target, settings, Drafting(speculator, K), extension=SWAP_EXTENSION) as live:
        ask = Asking(live, len(acmes))
        # The first request after a start is at steady state.
        (answer,), drafted, accepted = ask(prompts[0], salts=["acme"])
        assert answer == acmes.tolist() and accepted > 25
        # Attacks: the same request of other tenants, after the victim's and together with it.
        (answer,), alone, accepted_alone = ask(prompts[0], salts=["umbrella"])
        assert answer == acmes.tolist() and accepted_alone < accepted / 2
        assert ask(prompts[0], salts=["umbrella"])[1:] == (alone, accepted_alone)
        assert ask(prompts[0], salts=[None])[1:] == (alone, accepted_alone)
        assert ask(prompts[0], salts=["acme"])[1:] == (drafted, accepted)
        both = ask(prompts[0], prompts[0], salts=["acme", "umbrella"])
        assert both[1:] == (drafted + alone, accepted + accepted_alone)

        without = ask(prompts[1], salts=["umbrella"])
        swap(live, shared, own, target.directory())
        for salt in ("umbrella", None):
            (answer,), _, accepted_shared = ask(prompts[1], salts=[salt])
            assert answer == later[: len(answer)].tolist() and accepted_shared > without[2]
        assert ask(prompts[0], salts=["acme"])[2] < accepted
        # A history that cannot be read leaves the one in use.
        (shared / "history.npz").write_bytes(b"no history")
        with pytest.raises(OutriderError, match=r"history\.npz"):
            swap(live, shared, own, target.directory())
        assert ask(prompts[1], salts=[None])[2] == accepted_shared
        swap(live, own, own, target.directory())
        assert ask(prompts[0], salts=["acme"])[1:] == (drafted, accepted)
