"""The gate refuses speculators that must not ship, made and measured for real with nano R1 in vLLM.

One in-process engine (states, drafts), one pair of servers and one load generator serve all
evaluations; only the drafter's weights are swapped. Some are evaluated against nano R1's own MTP
layer. Those that must gain are evaluated against a weakened copy of it, so that no gain has to be
trained. The module takes ten minutes, so most of it is skipped by default:

    python -m pytest tests/eval/test_refusals.py -m "slow or not slow"
"""

import contextlib
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.config import CaptureConfig, TrafficConfig
from outrider.data.features.capture import ONLY_FINAL, capture_in_process
from outrider.data.features.capture_plan import CapturePlan
from outrider.data.features.feature_store import FeatureStore
from outrider.data.ingest.ingest import ingest
from outrider.data.on_policy.check import check_on_policy
from outrider.data.sequences import load_sequences
from outrider.data.split.slices import name_slices, write_slices
from outrider.eval.bench.closed_loop import measure_closed_loop
from outrider.eval.bench.metrics import SpeedRatios
from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.servers import Servers
from outrider.eval.config import EvalConfig, GateConfig
from outrider.eval.context import (
    Backends,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
)
from outrider.eval.evaluate import run_evaluation
from outrider.eval.gate import NOT_SERVED, judge_findings
from outrider.eval.replay.heldout_replay import COLUMNS, on_policy
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import compare_replays
from outrider.eval.results.report import Report
from outrider.eval.speed_checks import LEAST_STARTS, SUPERIOR, SpeedDemand
from outrider.serving import token_scores
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.engine import AskedRow, open_engine
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.data.logs import write_log
from tests.eval.sample_results import sample_findings
from tests.eval.slow_drafter import SLOW_DRAFTER_EXTENSION, SLOW_START
from tests.shipped_traffic import token_ids, with_token_ids
from tests.tiny import save_drafter

K = 2
REPOSITORY = Path(__file__).parents[2]
SERVING = ServingConfig(engine=EngineConfig(max_num_seqs=4, max_model_len=1024, kv_cache_gb=0.25))
EVALUATION = EvalConfig(
    k=K,
    lookup="ngram",  # one server fewer than with suffix lookup
    engine_modes=["eager"],
    concurrency=[1],
    requests=2,
    repeats=6,  # twelve pairs of requests
    max_tokens=40,
    verification_requests=4,
    verification_max_tokens=40,
    # Four responses of 40 tokens: a near tie that bf16 breaks otherwise is a large share of them.
    gate=GateConfig().model_copy(update={"max_replay_difference": 0.1}),
)


def logged(workload, count, longest=420):
    """The workload's first short exchanges with logged ids."""
    short = (row for row in with_token_ids(workload) if sum(map(len, token_ids(row))) < longest)
    return list(itertools.islice(short, count))


def captured(engine, nano_r1, run, rows):
    """A run directory up to capture."""
    run.mkdir()
    log = write_log(run / "log.jsonl", rows)
    ingest(nano_r1, TrafficConfig(path=str(log)), run, workers=0)
    table = load_sequences(run / "sequences")
    plan = CapturePlan(
        table=table,
        limit=engine.max_model_len - 1,
        spec=ONLY_FINAL.stored(engine.llm.model_config.get_hidden_size()),
        source={"run": str(run)},
        settings=CaptureConfig(),
        out_dir=run / "features",
        score_columns=token_scores.COLUMNS,
    )
    capture_in_process(plan, engine, load_target_ends(nano_r1).lm_head_VH)
    ids = table["sequence_id"][:]
    parts = {"train": [], "validation": ids[:4], "heldout": ids[4:]}
    (run / "parts.json").write_text(json.dumps(parts))
    write_slices(name_slices(table), run)
    return SimpleNamespace(
        run=run, table=table, store=FeatureStore.open(run / "features"), parts=parts
    )


@pytest.fixture(scope="module")
def weakened(nano_r1, tmp_path_factory):
    """Nano R1 with noise in its MTP layer's projection: equal states and tokens, bad drafts."""
    directory = (
        tmp_path_factory.mktemp("weakened") / nano_r1.name
    )  # a server knows its target by this name
    shutil.copytree(nano_r1, directory)
    tensors = load_file(directory / "model.safetensors")
    torch.manual_seed(0)
    (name,) = (name for name in tensors if name.endswith("eh_proj.weight"))
    weight = tensors[name].float()
    tensors[name] = (weight + 3 * torch.randn_like(weight) * weight.std()).bfloat16()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def context_of(base, custom, data, folders):
    """The evaluation of one MTP layer against the target's own."""
    return EvaluationContext(
        recipe="refusals",
        target=TargetConfig(model=str(base)),
        serving=SERVING,
        settings=EVALUATION,
        depth=K,
        speculators={"base": Speculator("mtp", base), "custom": Speculator("mtp", custom)},
        data=data,
        folders=folders,
    )


@pytest.fixture(scope="module", autouse=True)
def importable():
    """Engines import the slow drafter of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        yield


@pytest.fixture(scope="module")
def bench(nano_r1, tmp_path_factory):
    """Engine, servers, load generator, captured traffic, and `run_evaluation` on them."""
    home = tmp_path_factory.mktemp("bench")
    patch = pytest.MonkeyPatch()
    target = TargetConfig(model=str(nano_r1))
    patch.setattr("outrider.serving.server.SWAP_EXTENSION", SLOW_DRAFTER_EXTENSION)
    with contextlib.ExitStack() as stack:
        stack.callback(patch.undo)
        speculators = {name: Speculator("mtp", nano_r1) for name in ("base", "custom")}
        running = stack.enter_context(
            Servers(
                target=target,
                serving=SERVING,
                speculators=speculators,
                numbers=dict.fromkeys(speculators, (K,)),
                log_dir=home,
            )
        )
        engine = stack.enter_context(
            open_engine(
                target, SERVING.engine, Drafting(speculators["base"], K), extension=DRAFT_EXTENSION
            )
        )
        load = stack.enter_context(LoadGenerator(target, home / "load.log"))

        def servers(speculators, numbers, **_):
            """The running servers, with the evaluation's speculators."""
            running._speculators |= speculators
            running._numbers |= {name: tuple(numbers[name]) for name in speculators}
            for each in running._up.values():
                each.loaded = None
            return contextlib.nullcontext(running)

        backends = Backends(
            servers=servers,
            engine=lambda *_, **__: contextlib.nullcontext(engine),
            load=lambda *_: contextlib.nullcontext(load),
        )
        traffic = captured(engine, nano_r1, home / "customer", logged("resume_screening", 24))

        def judged(custom, base=nano_r1, traffic=traffic, **settings):
            """The results of a whole evaluation of `custom` against the MTP layer of `base`."""
            out = home / f"{custom.parent.name}-{custom.name}-{base.parent.name}"
            data = EvaluationData(
                traffic.run / "sequences",
                traffic.parts,
                traffic.run / "features",
                users="one",  # the log has one user id, of an application
            )
            folders = EvaluationFolders(home, out, out, home)
            context = context_of(base, custom, data, folders)
            own = context.settings.model_copy(update=settings)
            run_evaluation(replace(context, backends=backends, settings=own))
            return Report.read(out / "report.json")

        yield SimpleNamespace(engine=engine, traffic=traffic, judged=judged, home=home)


def published(nano_r1, directory, change=None):
    """A speculator's directory: nano R1's own MTP layer, with `change` made to it."""
    speculator = load_mtp(nano_r1)
    if change:
        with torch.no_grad():
            change(speculator)
    save_drafter(speculator, nano_r1, directory)
    return directory


def failed(results):
    return [check.name for check in results.verdict.checks if check.outcome == "failed"]


@pytest.fixture(scope="module")
def gains(bench, nano_r1, weakened):
    """The evaluation of nano R1's own layer against the weakened one.

    On a busy machine three starts left custom / lookup at 2.2 [0.96, 5.0]; more are made only then.
    """
    return bench.judged(published(nano_r1, bench.home / "gains"), weakened, starts=6)


@pytest.mark.slow
@pytest.mark.engine
def test_what_gains_ships_on_this_very_bench(gains):
    """Otherwise the refusals below would prove nothing."""
    assert gains.verdict.verdict == "ship", gains.verdict.reason
    assert gains.own_text.cause == "own"
    assert gains.replay.ratio.low > 1.2 and gains.counted.ratio.value > 1.2


@pytest.mark.slow
@pytest.mark.engine
def test_what_gains_in_acceptance_and_loses_tokens_per_second_is_refused(
    bench, nano_r1, weakened, gains
):
    results = bench.judged(published(nano_r1, bench.home / "slow"), weakened)
    assert results.replay.ratio == gains.replay.ratio  # the same weights
    assert results.counted.ratio.value > 1.2
    assert results.verdict.verdict == "do not ship"
    # Against base, no speculation or lookup, as the noise of this machine lets it show.
    assert failed(results) and all(
        name.startswith("tokens/s, custom / ") for name in failed(results)
    )


@pytest.fixture(scope="module")
def with_example(bench, nano_r1):
    """Traffic whose prompts begin with the same exchange, answered by the target."""
    by_length = sorted(
        logged("resume_screening", 25), key=lambda row: sum(map(len, token_ids(row)))
    )
    *rows, example = by_length
    shared = list(itertools.chain(*token_ids(example)))
    asked = []
    for row in rows:
        response = row["response"]
        # Without the token with which a text begins.
        response["prompt_token_ids"] = shared + response["prompt_token_ids"][1:]
        question = AskedRow(
            row_id=response["id"],
            token_ids=response["prompt_token_ids"],
            temperature=0.6,
            top_p=0.95,
            max_tokens=120,
        )
        asked.append(question)
    for row, answer in zip(rows, bench.engine.answer(asked), strict=True):
        (choice,) = row["response"]["choices"]
        choice["token_ids"] = answer
        choice["finish_reason"] = "length" if len(answer) == 120 else "stop"
    return captured(bench.engine, nano_r1, bench.home / "with_example", rows)


@pytest.mark.slow
@pytest.mark.engine
def test_a_tenth_lost_where_a_prefix_is_cached_turns_ship_into_do_not_ship(
    bench, nano_r1, with_example, monkeypatch
):
    """Custom has base's weights, and may be 5 % slower; with cold prompts it would lose nothing."""
    for module in ("evaluate", "choose_k"):
        monkeypatch.setattr(f"outrider.eval.{module}.served_lookups", lambda *_: {})
    limits = {"min_acceptance_ratio": 0.95, "min_speed_ratio": 0.95}
    settings = {
        "gate": EVALUATION.gate.model_copy(update=limits),
        "requests": 4,
        # On a quiet machine 4 repeats decide; pairs differ by 2 % there, by 30 % on a busy one.
        "repeats": 64,
        "measure": "until_decided",
        "traffic": with_example,
    }
    whole = bench.judged(published(nano_r1, bench.home / "whole"), **settings)
    assert whole.verdict.verdict == "ship", whole.verdict.reason
    speed = whole.served["eager"].speed["1"]
    for variant, least in (("none", 0.5), ("base", 0.3), ("custom", 0.3)):
        cache = speed.of(variant).cache
        assert least < cache.hit_rate == pytest.approx(cache.production_hit_rate)

    results = bench.judged(published(nano_r1, bench.home / "slow_prefix"), **settings)
    assert results.replay.ratio == whole.replay.ratio  # the same weights
    assert results.verdict.verdict == "do not ship", results.verdict.reason
    assert failed(results) == ["tokens/s, custom / base, eager, concurrency 1"]


@pytest.mark.slow
@pytest.mark.engine
def test_an_engine_that_accepts_more_than_it_may_is_refused(bench, nano_r1, weakened):
    """Of all drafts 25 % are accepted whatever the target says: custom is faster, and lossy.

    With 5 % four of these 16 short responses differ, which is `undecided`.
    """
    custom = published(nano_r1, bench.home / "relaxed")
    results = bench.judged(custom, weakened, repeats=1, max_tokens=8, verification_requests=16)
    assert results.verdict.verdict == "do not ship"
    assert "greedy outputs with and without speculation, eager" in failed(results)


@pytest.mark.slow
@pytest.mark.engine
def test_a_gain_in_one_user_s_traffic_does_not_pass(bench, nano_r1, weakened):
    """One user has most sessions, four others one each; custom drafts better for the first alone.

    Both speculators are replayed on the engine's states.
    """
    rows = load_sequences(bench.traffic.run / "sequences", bench.traffic.parts["heldout"])
    rows = rows.select_columns(COLUMNS).to_list()
    base, custom = (
        replay(
            speculator=directory,
            target_dir=nano_r1,
            feature_store=bench.traffic.store,
            rows=rows,
            depth=K,
            draft_sample_method="greedy",
        )
        for directory in (weakened, nano_r1)
    )
    easy = sorted({*base.sessions})[:-4]
    users = ["easy" if session in easy else session for session in base.sessions]
    hard_R = np.array(users) != "easy"
    custom.steps_RK[hard_R] = base.steps_RK[hard_R]
    outcomes = []
    findings = sample_findings()
    for owners in ([""] * len(users), users):
        ratio = compare_replays(replace(base, users=owners), custom, K)["ratio"]
        replayed = findings.replay.model_copy(update={"ratio": ratio})
        found = findings.model_copy(update={"replay": replayed})
        outcomes.append(judge_findings(found, EVALUATION.gate).checks[0].outcome)
    assert outcomes == ["passed", "undecided"]
    assert ratio.over.endswith("with the wider interval over users")


@pytest.mark.slow
@pytest.mark.engine
def test_a_slow_start_does_not_make_the_other_engine_faster(nano_r1, tmp_path, monkeypatch):
    """Base's first of three starts sleeps in every step; both engines have the same speculator."""
    started = []

    def start(target, engine, drafting, log_path):
        if "base" in log_path.name and log_path.name not in started:
            engine = engine.model_copy(update={"environment": {SLOW_START: "1"}})
        started.append(log_path.name)
        return Server(target, engine, drafting, log_path=log_path)

    monkeypatch.setattr("outrider.serving.server.SWAP_EXTENSION", SLOW_DRAFTER_EXTENSION)
    monkeypatch.setattr("outrider.eval.bench.servers.Server", start)
    monkeypatch.setattr(EngineConfig, "changes_drafters", False)
    target = TargetConfig(model=str(nano_r1))
    sampling = Sampling(0.0, 1.0)
    speculators = {name: Speculator("mtp", nano_r1) for name in ("base", "custom")}
    few = {"requests": 4, "repeats": LEAST_STARTS, "max_tokens": 24, "measure": "full"}
    settings = EVALUATION.model_copy(update=few)
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    prompts = [
        Prompt(
            sequence_id=f"q{number}",
            session=f"s{number}",
            user="",
            token_ids=ids,
            text=tokenizer.decode(ids),
        )
        for number, row in enumerate(logged("resume_screening", 12))
        for ids in token_ids(row)[:1]
    ]
    speeds = SpeedRatios(settings, prompts, main=1)
    plan = {"base": K, "custom": K}
    with (
        LoadGenerator(target, tmp_path / "load.log") as load,
        Servers(
            target=target,
            serving=SERVING,
            speculators=speculators,
            numbers=dict.fromkeys(speculators, (K,)),
            log_dir=tmp_path,
        ) as servers,
    ):
        blocks = measure_closed_loop(
            servers,
            mode="eager",
            plan=plan,
            load=load,
            sampling=sampling,
            speeds=speeds,
            say=print,
        )
    assert sum("base" in name for name in started) == LEAST_STARTS
    found = speeds.ratio(blocks, 1, "custom_over_base")
    slow = speeds.ratio([each for each in blocks if not each["repeat"]], 1, "custom_over_base")
    assert slow.value > 1.1, "nothing was planted"
    demand = SpeedDemand(
        kind=SUPERIOR,
        versus="base",
        concurrency=1,
        ratio=found,
        threshold=settings.gate.min_speed_ratio,
        starts=LEAST_STARTS,
    )
    assert demand.outcome != "passed"


def noise_in_the_head(speculator):
    weight = speculator.eh_proj.weight
    weight.copy_(torch.randn_like(weight) * weight.std())


def zeroed(speculator):
    speculator.block.self_attn.o_proj.weight.zero_()
    speculator.eh_proj.weight.zero_()


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("corrupt", [noise_in_the_head, zeroed])
def test_a_corrupt_head_is_refused(bench, nano_r1, corrupt):
    torch.manual_seed(0)
    results = bench.judged(published(nano_r1, bench.home / corrupt.__name__, corrupt))
    assert results.verdict.verdict == "do not ship"
    assert results.verdict.reason.startswith(
        f"acceptance length, custom / base, {results.at_k}: 0."
    )
    assert results.counted.ratio.value < 0.9
    assert (
        results.verification.modes["eager"].greedy.custom.unexplained == []
    )  # speculation is lossless all the same


@pytest.mark.slow
@pytest.mark.engine
def test_prompts_of_another_template_are_named_and_refused(bench, nano_r1, gains, tmp_path):
    """Rendered without the `<think>\\n` with which R1's template lets the answer begin."""
    rows = [
        row
        for workload in ("general", "document_extraction", "social_chat")
        for row in logged(workload, 12)
    ]
    for row in rows:
        row["response"]["prompt_token_ids"] = row["response"]["prompt_token_ids"][:-2]
    shifted = captured(bench.engine, nano_r1, tmp_path / "shifted", rows)
    check_on_policy(
        shifted.run / "sequences", shifted.run, shifted.run / "features", min_on_policy=None
    )
    verdict = read_json(shifted.run / "features" / "on_policy.json")["parts"]["heldout"]["verdict"]
    assert verdict["own"] is False and verdict["cause"] in NOT_SERVED, verdict
    heldout = load_sequences(shifted.run / "sequences", shifted.parts["heldout"])
    # Everything else is of a run that ships.
    results = gains.model_copy(update={"own_text": on_policy(shifted.store, heldout)})
    refused = judge_findings(results, EVALUATION.gate)
    assert [check.name for check in refused.checks if check.outcome == "failed"] == [
        "held-out text is on-policy"
    ]
    assert verdict["text"] in refused.reason
    assert judge_findings(gains, EVALUATION.gate).verdict == "ship"


def with_nan(tensors):
    next(tensor for name, tensor in tensors.items() if name.endswith("kv_b_proj.weight"))[7, 3] = (
        float("nan")
    )


def with_a_stale_embedding(tensors):
    (name,) = (name for name in tensors if name.endswith("eh_proj.weight"))
    embedding = tensors.pop("of the target")
    tensors[name.replace("eh_proj", "embed_tokens")] = embedding.roll(1, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_nan, r"not a finite number in model\.layers\.16\.self_attn\.kv_b_proj\.weight"),
        (
            with_a_stale_embedding,
            r"embed_tokens\.weight differs in 4096 of 4096 rows .*: a stale vocabulary",
        ),
    ],
)
def test_what_can_be_seen_in_the_files_is_refused_before_anything_starts(
    nano_r1, tmp_path, monkeypatch, change, said
):
    directory = published(nano_r1, tmp_path / "speculator")
    tensors = load_file(directory / "model.safetensors")
    if change is with_a_stale_embedding:
        tensors["of the target"] = load_file(nano_r1 / "model.safetensors")[
            "model.embed_tokens.weight"
        ]
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(FeatureStore, "open", lambda *_: pytest.fail("started"))
    with pytest.raises(OutriderError, match=said):
        data = EvaluationData(
            tmp_path / "sequences", {"validation": ["a"], "heldout": ["b"]}, tmp_path / "features"
        )
        folders = EvaluationFolders(tmp_path, tmp_path / "out", tmp_path, tmp_path)
        run_evaluation(context_of(nano_r1, directory, data, folders))
