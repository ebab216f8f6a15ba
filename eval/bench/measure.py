"""What an evaluation measures in servers: timed blocks, rates, and the verification pass.

served = serve(context, servers, load, k, draft_plan(choice, None, False), requests)
served.blocks["eager"], served.outputs
"""

import shutil
from dataclasses import dataclass
from typing import Any

from outrider.common.fingerprint import value_digest
from outrider.eval.bench.closed_loop import measure
from outrider.eval.bench.open_loop import measure_rates, rates_done
from outrider.eval.bench.server_pool import DraftPlan, ServerPool
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.lossless.outputs import Outputs, collect
from outrider.eval.results.parts import DRAFTERS, Drafters
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.vllm_hooks.step_recorder import Drafts


@dataclass(frozen=True)
class Measured:
    """Plain records of what was served."""

    blocks: dict[str, list[dict[str, Any]]]
    """Engine mode -> timed blocks (`closed_loop.measure`)."""
    outputs: Outputs
    """Responses and counters of the verification pass."""


def serve(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    k: Drafters[int],
    plan: DraftPlan,
    requests: HeldoutRequests,
) -> Measured:
    """Measures every engine mode; the verification pass runs in the first, at `k`.

    Each measurement is kept in the context's cache. Servers start only for what is missing there.
    """
    cache, settings, sampling = context.cache, context.settings, requests.sampling
    blocks: dict[str, list[dict[str, Any]]] = {}
    for mode in settings.engine_modes:
        speed = f"speed_{mode}"
        verify = mode == settings.engine_modes[0] and not cache.done("verification_outputs")
        rates = not rates_done(cache, mode, requests.traffic, settings)
        if verify or rates or not cache.done(speed):
            if verify:
                # Replay predicts the steps at one k.
                fixed: dict[str, Drafts] = {name: k.of(name) for name in DRAFTERS}
                fleet = servers.fleet(mode, {**plan, **fixed})
                outputs = collect(
                    fleet,
                    requests.verification,
                    sampling,
                    settings.verification_max_tokens,
                    context.serving.engine.max_num_seqs,
                    logs := context.folders.out / "responses",
                    value_digest([cache.digest, k.model_dump()]),
                    context.say,
                )
                cache.put("verification_outputs", outputs.model_dump(mode="json"))
                shutil.rmtree(logs, ignore_errors=True)
            fleet = servers.fleet(mode, plan)
            if not cache.done(speed):
                texts, say = requests.timed_texts, context.say
                cache.put(speed, measure(fleet, load, texts, sampling, settings, say))
            measure_rates(
                cache, fleet, load, mode, requests.traffic, sampling, settings, context.say
            )
        blocks[mode] = cache.get(speed)
    outputs = Outputs.model_validate(cache.get("verification_outputs"))
    return Measured(blocks, outputs)
