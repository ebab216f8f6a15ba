"""What an evaluation measures in servers: timed blocks, rates, and the verification pass.

served = serve(context, servers, load, k, draft_plan(choice, None, False), requests)
served.blocks["eager"], served.outputs
"""

from dataclasses import dataclass
from typing import Any

from outrider.eval.bench.closed_loop import Plan, measure
from outrider.eval.bench.open_loop import measure_rates
from outrider.eval.bench.outputs import Outputs, collect
from outrider.eval.bench.servers import Servers
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.results.parts import Drafters
from outrider.serving.load_generator import LoadGenerator


@dataclass(frozen=True)
class Measured:
    """Plain records of what was served."""

    blocks: dict[str, list[dict[str, Any]]]
    """Engine mode -> timed blocks (`closed_loop.measure`)."""
    outputs: Outputs
    """Responses and counters of the verification pass."""


def serve(
    context: EvaluationContext,
    servers: Servers,
    load: LoadGenerator,
    k: Drafters[int],
    plan: Plan,
    requests: HeldoutRequests,
) -> Measured:
    """Measures every engine mode; the verification pass runs in the first, at `k`.

    Each measurement is kept. Servers start only for what is missing.
    """
    settings = context.settings
    outputs = collect(context, servers, settings.engine_modes[0], k, requests)
    blocks: dict[str, list[dict[str, Any]]] = {}
    for mode in settings.engine_modes:
        timed = context.kept(f"speed_{mode}")
        if not timed.done():
            texts, sampling = requests.timed_texts, requests.sampling
            timed.put(measure(servers, mode, plan, load, texts, sampling, settings, context.say))
        blocks[mode] = timed.get()
        measure_rates(context, servers, mode, plan, load, requests)
    return Measured(blocks, outputs)
