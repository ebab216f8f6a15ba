"""The evaluation end to end: replay, choose K, serve, verify, judge, report.

    run_evaluation(EvaluationContext(recipe="resume_screening", speculators={...}, ...))

Every kind of speculator can be evaluated. If exact replay is impossible, for example because the
states that a speculator reads were not captured, its figures are null, `not_measured` gives the
reason, and the verdict is based on vLLM's counters and the measured speed.

Writes the report and the servers' logs. Each measurement is cached, so an interrupted evaluation
resumes; intervals, verdict and report are recomputed from the cache each time.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from outrider.common.child_process import in_child
from outrider.common.errors import OutriderError
from outrider.common.fingerprint import value_digest
from outrider.eval.bench.capacity import limits_of, measure_capacity, summarise_capacity
from outrider.eval.bench.closed_loop import measure_closed_loop
from outrider.eval.bench.counted import (
    CountedPass,
    counted_acceptance,
    counted_passes,
    verification_passes,
)
from outrider.eval.bench.metrics import (
    Record,
    ReplayedSteps,
    SpeedRatios,
    cut_share,
    repeats_of,
    timed_context,
)
from outrider.eval.bench.open_loop import RateBlocks, measure_rates, summarise_rates
from outrider.eval.bench.outputs import Outputs, collect_outputs
from outrider.eval.bench.prefix_cache import ProductionCache, customers_log
from outrider.eval.bench.prompts import (
    EVERYTHING,
    HeldoutRequests,
    customers_sampling,
    evaluation_prompts,
    mean_context,
    prompt_room,
    select_requests,
    select_scenarios,
)
from outrider.eval.bench.request_fields import request_fields
from outrider.eval.bench.servers import Servers
from outrider.eval.both_together import both_together
from outrider.eval.choose_k import choose_by_step_time, draft_plan
from outrider.eval.config import ScenarioConfig
from outrider.eval.context import EvaluationContext
from outrider.eval.lookups import (
    history_facts,
    missing_lookups,
    separates_tenants,
    served_lookups,
    with_lookups,
)
from outrider.eval.lossless.verification import verify
from outrider.eval.replay.example_traces import sample_responses
from outrider.eval.replay.heldout_replay import Replays, on_policy, replay_figures, replay_parts
from outrider.eval.replay.slices import by_prompt_length, slice_results
from outrider.eval.results.parts import DRAFTERS, LOOKUP, Drafters, Variants
from outrider.eval.results.report import Example, Findings, RequestSampling, SpeculatorIdentity
from outrider.eval.results.sections import Capacity, KChoice, RateRow, ServedSpeed
from outrider.eval.summary import conclude
from outrider.eval.workloads import measured_workloads, prompts_of
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator
from outrider.serving.vllm_hooks.drafts_file import Drafts
from outrider.speculators.kinds import check_speculator
from outrider.speculators.kinds.protocol import MOST_LOOKED_UP, Runner


def run_evaluation(context: EvaluationContext) -> dict[str, Any]:
    """Evaluates custom against base and no speculation; returns the summary for scripts."""
    check_evaluation(context)
    context = with_lookups(context)
    heldout = context.data.rows(context.data.parts["heldout"])
    requests = heldout_requests(context, heldout)
    replays = replay_parts(context)
    replayed_heldout = replays.get("heldout")
    validation = replays.get("validation")
    texts = [prompt.text for prompt in requests.timed]
    references = served_lookups(context, validation)
    served = {name: context.variants[name] for name in (*DRAFTERS, *references)}
    with context.open_servers(served, texts, requests.fields) as (load, servers):
        workloads = measured_workloads(context, requests.sampling)
        modes = context.settings.engine_modes
        choice = choose_by_step_time(
            context=context,
            servers=servers,
            load=load,
            requests=requests,
            validation=validation,
            mode=modes[0],
        )
        k = choice.k
        lookup = f", {choice.lookup_k} for {choice.lookup} lookup" if choice.lookup else ""
        context.say(f"k = {k.base} for base, {k.custom} for custom{lookup}")
        replayed = replay_stage(context, replays, choice, heldout)
        measured = MeasuredModes()
        for mode in modes:
            _measure_mode(
                measured,
                context=context,
                servers=servers,
                load=load,
                mode=mode,
                k=k,
                requests=requests,
                replays=replays,
            )
    verification = verify(context, k, requests.verification, measured.outputs)
    findings = Findings(
        recipe=context.recipe,
        run_dir=str(context.folders.run),
        target=context.target.model,
        speculator=_identity(context),
        heldout_until=max(filter(None, heldout["time"]), default=None),
        by_batch_size=context.by_batch_size,
        choice=choice,
        sampling=_sampling_of(requests),
        draft_sample_method=context.draft_sample_method,
        not_measured=unmeasured_figures(context),
        missing_lookups=missing_lookups(context),
        lost_ends=requests.lost_ends,
        **replayed,
        both_together=both_together(context, replays, choice),
        workloads=workloads,
        counted=counted_acceptance(measured.passes, context.speculators, k),
        runners=_runners(context),
        served=measured.served,
        rates=measured.rates,
        capacity=measured.capacity,
        scenarios={traffic.name: traffic.described for traffic in requests.traffic},
        verification=verification,
        samples=samples_stage(context, replayed_heldout, k.custom),
        settings=context.settings.model_dump(mode="json"),
    )
    return conclude(context, findings)


@dataclass(frozen=True)
class MeasuredModes:
    """What the servers of all engine modes gave, by mode."""

    served: dict[str, ServedSpeed] = field(default_factory=dict)
    rates: dict[str, dict[str, dict[str, RateRow]]] = field(default_factory=dict)
    capacity: dict[str, Capacity] = field(default_factory=dict)
    outputs: dict[str, Outputs] = field(default_factory=dict)
    passes: list[CountedPass] = field(default_factory=list)
    """Counted passes of all modes at the chosen k."""


def _measure_mode(
    measured: MeasuredModes,
    *,
    context: EvaluationContext,
    servers: Servers,
    load: LoadGenerator,
    mode: str,
    k: Drafters[int],
    requests: HeldoutRequests,
    replays: Mapping[str, Replays],
) -> None:
    """Adds one engine mode's responses and speeds to `measured`."""
    choice = choose_by_step_time(
        context=context,
        servers=servers,
        load=load,
        requests=requests,
        validation=replays.get("validation"),
        mode=mode,
    )
    outputs = collect_outputs(context, servers=servers, mode=mode, k=k, requests=requests)
    speed = measure_speed(
        context,
        servers=servers,
        load=load,
        mode=mode,
        choice=choice,
        requests=requests,
        replays=replays,
    )
    measured.outputs[mode] = outputs
    measured.served[mode] = speed.served
    if requests.traffic:
        measured.rates[mode] = summarise_rates(speed.rates)
    if speed.capacity is not None:
        measured.capacity[mode] = speed.capacity
    measured.passes.extend(verification_passes(outputs, requests.verification))
    # Counters at another k, or at several, would be of other drafts.
    scheduled = context.by_batch_size and choice.k_per_batch_size is not None
    if choice.k == k and not scheduled:
        measured.passes.extend(counted_passes(speed.blocks, requests.timed))


def _identity(context: EvaluationContext) -> SpeculatorIdentity:
    """The kind and the weights of the custom speculator."""
    custom = context.speculators["custom"]
    weights = value_digest(context.weights) if context.weights else None
    return SpeculatorIdentity(
        kind=custom.kind,
        weights_sha256=weights,
        settings=dict(custom.settings),
        history=history_facts(custom),
    )


def _runners(context: EvaluationContext) -> Variants[Runner]:
    """The model runner of each variant's engine."""
    return Variants[Runner](
        none=context.runner(Speculator("none")),
        base=context.runner(context.speculators["base"]),
        custom=context.runner(context.speculators["custom"]),
    )


def _sampling_of(requests: HeldoutRequests) -> RequestSampling:
    """The customer's sampling settings, for the report."""
    sampling = requests.sampling
    return RequestSampling(
        temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k
    )


def check_evaluation(context: EvaluationContext) -> None:
    """Checks the recipe before servers start; raises an `OutriderError` for mistakes."""
    _check_drafts(context)
    _check_schedule(context)
    for workload in context.settings.general:
        prompts_of(context.settings, workload)
    for name in ("validation", "heldout"):
        if not context.data.parts[name]:
            raise OutriderError(
                f"evaluate: the {name} part has no sequences; raise split.{name}_fraction or "
                "provide more traffic"
            )
    target_dir = context.target.directory()
    for speculator in context.speculators.values():
        directory = speculator.directory
        if speculator.drafter_kind.has_weights and directory not in (None, target_dir):
            check_speculator(directory, target_dir)


def _check_drafts(context: EvaluationContext) -> None:
    """Checks `eval.k` and `eval.current_k` against the trained depth and the kinds."""
    settings = context.settings
    depth = context.depth
    most = depth if context.speculators["base"].drafter_kind.has_weights else MOST_LOOKED_UP
    if settings.current_k is not None and settings.current_k > most:
        raise OutriderError(
            f"eval.current_k = {settings.current_k}, but base has at most {most} drafts per"
            " step (speculator.depth, or 24 for a lookup); raise speculator.depth or remove"
            " eval.current_k"
        )
    kinds = [speculator.drafter_kind for speculator in context.speculators.values()]
    blocks = [kind.in_words for kind in kinds if kind.one_block]
    if blocks and settings.k not in ("auto", depth):
        raise OutriderError(
            f"eval.k = {settings.k}: the drafts of {blocks[0]} depend on their number, so it is"
            f" trained, replayed and served only at speculator.depth = {depth}; remove eval.k or"
            " train at that depth"
        )
    base = context.speculators["base"].drafter_kind
    base_k = depth if settings.k == "auto" else settings.k
    own_k = context.base_has_own_k and settings.k == "auto"
    if base.fixed_k and not own_k and settings.current_k not in (None, base_k):
        raise OutriderError(
            f"eval.current_k = {settings.current_k}: {base.in_words} always drafts as many"
            f" tokens as its engine was started with, here {base_k}; set eval.k and"
            " eval.current_k to the same number"
        )


def _check_schedule(context: EvaluationContext) -> None:
    """Checks that both speculators can follow a schedule by batch size, if one is set."""
    if context.k_per_batch_size is not True:
        return
    kinds = [speculator.drafter_kind for speculator in context.speculators.values()]
    fixed = [kind.in_words for kind in kinds if kind.fixed_k]
    if fixed:
        raise OutriderError(
            f"export.k_per_batch_size: true, but {fixed[0]} drafts the same number of tokens at"
            " every batch size; set it to false"
        )
    if not context.serving.engine.changes_drafters:
        raise OutriderError(
            "export.k_per_batch_size: true, but with data parallelism vLLM ignores the schedule"
            " (serving.engine.data_parallel), and with EPLB it cannot be measured; set it to false"
        )


def unmeasured_figures(context: EvaluationContext) -> dict[str, str]:
    """Figures that the gate cannot check -> reason; empty with exact replay."""
    if context.no_replay is None:
        return {}
    in_words, why = context.no_replay
    return {
        "exact replay": f"no exact replay of {in_words}: acceptance is counted by the engine",
        "general traffic": f"no exact replay of {in_words}",
        "replay against engine": why,
    }


def heldout_requests(context: EvaluationContext, heldout: Dataset) -> HeldoutRequests:
    """Selects the held-out requests to send, and their sampling settings."""
    settings = context.settings
    serving = context.serving
    verification, timed = evaluation_prompts(heldout, settings, serving)
    # Open-loop acceptance counts only steps with drafts, so custom must draft in all or none.
    custom = context.speculators["custom"]
    comparable = custom.trainable or not custom.speculates
    traffic = select_requests(heldout, settings, serving) if comparable else []
    everything = None
    if settings.capacity_minutes:
        (everything,) = select_scenarios(heldout, settings, serving, {EVERYTHING: ScenarioConfig()})
    salted = separates_tenants(context.variants.values())
    fields = request_fields(heldout, context.target, serving.engine, salted=salted)
    if fields:
        context.say(
            f"{len(fields):,} held-out prompts are sent with their logged grammar or tenant"
        )
    room = prompt_room(settings, serving)
    starts = heldout["completion_start"]
    lengths = [len(ids) for ids in heldout["token_ids"]]
    lost_ends: tuple[str, ...] = ()
    unsent = sum(start > room for start in starts)
    if unsent:
        lost_ends = (
            f"serving.engine.max_model_len: {unsent:,} of {len(starts):,} held-out prompts are not"
            " sent, because they leave no room for a response; raise it, or lower eval.max_tokens"
            " and eval.verification_max_tokens",
        )
        context.say(*lost_ends)
    return HeldoutRequests(
        sampling=customers_sampling(heldout),
        verification=verification,
        timed=timed,
        traffic=traffic,
        everything=everything,
        fields=fields,
        times=_times(heldout, context.data.rows(context.data.parts["validation"])),
        context=mean_context(starts, np.subtract(lengths, starts)),
        lost_ends=lost_ends,
    )


def _times(*parts: Dataset) -> dict[str, float | None]:
    """Times of the requests of these parts, by sequence id."""
    pairs = [zip(part["sequence_id"], part["time"], strict=True) for part in parts]
    return dict(itertools.chain.from_iterable(pairs))


def replay_stage(
    context: EvaluationContext, replays: Mapping[str, Replays], choice: KChoice, table: Dataset
) -> dict[str, Any]:
    """Findings of exact replay.

    Lengths and slices use custom's k for both; base's acceptance by position uses base's own k.
    """
    if not replays:
        return {"own_text": None, "replay": None, "general": None, "slices": {}}
    heldout = replays["heldout"]
    general = replays.get("general")
    starts = dict(zip(table["sequence_id"], table["completion_start"], strict=True))
    slices = {**context.data.slices, "prompt length": by_prompt_length(starts)}
    replay = replay_figures(heldout, choice)
    return {
        "own_text": on_policy(context.feature_store, table),
        "replay": replay,
        "general": replay_figures(general, choice) if general else None,
        "slices": slice_results(heldout["base"], heldout["custom"], replay.k, slices),
    }


class MeasuredSpeed(NamedTuple):
    """What the servers of one engine mode gave."""

    served: ServedSpeed
    blocks: list[Record]
    """The closed loop's blocks"""
    rates: RateBlocks
    capacity: Capacity | None


def measure_speed(
    context: EvaluationContext,
    *,
    servers: Servers,
    load: LoadGenerator,
    mode: str,
    choice: KChoice,
    requests: HeldoutRequests,
    replays: Mapping[str, Replays],
) -> "MeasuredSpeed":
    """Measures one engine mode at its k, in closed and open loop; cached blocks need no servers."""
    settings = context.settings
    base = context.speculators["base"]
    # `eval.current_k` cannot be set on a running server whose K is fixed, and has no meaning
    # without drafts.
    fixed = base.drafter_kind.fixed_k or not base.speculates
    plan: dict[str, Drafts | None] = {
        "none": None,
        **draft_plan(choice, settings.current_k, context.by_batch_size, fixed),
    }
    speeds = SpeedRatios(
        settings,
        requests.timed,
        choice.main_concurrency,
        replayed_steps(replays, plan, choice.lookup, requests.times),
    )
    if choice.lookup is not None:
        servers.alias(LOOKUP, choice.lookup)
    blocks = context.cached_result(f"speed_{mode}").run(
        lambda: measure_closed_loop(
            servers,
            mode=mode,
            plan=plan,
            load=load,
            sampling=requests.sampling,
            speeds=speeds,
            say=context.say,
            production=ProductionCache(
                customers_log(context.data.sequences), requests.timed, requests.fields
            ),
            finished=context.cached_result(f"speed_{mode}_repeats"),
        )
    )
    rates = context.cached_result(f"rates_{mode}").run(
        lambda: measure_rates(
            context=context, servers=servers, mode=mode, plan=plan, load=load, requests=requests
        )
    )
    served = ServedSpeed(
        k=choice.k,
        speed=speeds.summarise(blocks),
        repeats=repeats_of(blocks),
        cut=cut_share(blocks, settings.max_tokens),
        timed_context=timed_context(blocks, requests.timed),
        whole_context=requests.context,
    )
    capacity = None
    if requests.everything is not None:
        rated = context.cached_result(f"capacity_{mode}").run(
            lambda: measure_capacity(
                context=context,
                servers=servers,
                mode=mode,
                plan=plan,
                load=load,
                requests=requests,
                closed=blocks,
            )
        )
        capacity = summarise_capacity(rated, limits_of(settings, blocks))
    return MeasuredSpeed(served, blocks, rates, capacity)


def replayed_steps(
    replays: Mapping[str, Replays],
    plan: Mapping[str, Drafts | None],
    lookup: str | None,
    times: Mapping[str, float | None],
) -> ReplayedSteps | None:
    """Replayed steps of the held-out part, and of the validation part before it.

    None without exact replay. `times` has the time of each response's request, by sequence id.
    """
    if not replays:
        return None
    earlier = _replayed_steps(replays["validation"], plan, lookup, times)
    heldout = _replayed_steps(replays["heldout"], plan, lookup, times)
    return dataclasses.replace(heldout, earlier=earlier)


def _replayed_steps(
    replays: Replays,
    plan: Mapping[str, Drafts | None],
    lookup: str | None,
    times: Mapping[str, float | None],
) -> ReplayedSteps:
    """Replayed steps of a part's responses by variant.

    Variants whose schedule drafts different numbers at the measured batch sizes are omitted.
    """
    steps = {}
    cut_steps = {}
    for variant, drafts in plan.items():
        # Base at eval.current_k uses base's sums.
        replayed = lookup if variant == LOOKUP else variant
        sums = replays.get(str(replayed), replays["base"])
        # A schedule's last range is above the measured sizes.
        numbers = {k for _, _, k in drafts[:-1]} if isinstance(drafts, Sequence) else {drafts or 0}
        if len(numbers) == 1:
            k = numbers.pop()
            steps[variant] = sums.steps_at(k)
            if sums.is_timed:
                cut_steps[variant] = sums.timed_steps(k)
    base = replays["base"]
    return ReplayedSteps(
        steps=steps,
        sequence_ids=base.sequence_ids,
        sessions=base.sessions,
        users=base.users,
        cut_steps=cut_steps,
        times=[times[name] for name in base.sequence_ids],
    )


def samples_stage(
    context: EvaluationContext, replays: Replays | None, k: int
) -> list[Example] | None:
    """Example responses; None without `report.samples`, replay or weights of both speculators."""
    if replays is None or not context.show_samples:
        return None
    directories: dict[str, Path] = {}
    for name, speculator in context.speculators.items():
        if speculator.directory is None or not speculator.drafter_kind.has_weights:
            return None
        directories[name] = speculator.directory
    work = functools.partial(
        in_child,
        sample_responses,
        base=replays["base"],
        custom=replays["custom"],
        k=k,
        speculators=directories,
        target_dir=context.target.directory(),
        store=context.feature_store,
        dtype=context.settings.replay_dtype,
    )
    return [
        Example.model_validate(example) for example in context.cached_result("examples").run(work)
    ]
