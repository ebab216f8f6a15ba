"""The gate refuses speculators that must not ship, made and measured for real with nano R1 in vLLM.

One in-process engine (states, drafts), one pair of servers and one load generator serve all
evaluations; only the drafter's weights are swapped. Some are evaluated against nano R1's own MTP
layer. Those that must gain are evaluated against a weakened copy of it, so that no gain has to be
trained. The module takes ten minutes, so it is skipped by default:

    python -m pytest tests/eval/test_refusals.py -m "slow or not slow"
"""

import contextlib
import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from outrider.data.config import CaptureConfig, TrafficConfig
from outrider.data.features.capture import capture_table
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from outrider.eval.bench.closed_loop import measure
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
from outrider.eval.evaluate import evaluate
from outrider.eval.results.report import Report
from outrider.eval.speed_checks import LEAST_STARTS, SUPERIOR, Demand
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.data.logs import write_log
from tests.eval.slow_drafter import SLOW_DRAFTER_EXTENSION, SLOW_START
from tests.shipped_traffic import token_ids, with_token_ids
from tests.tiny import save_drafter

K = 2
REPOSITORY = Path(__file__).parents[2]
SERVING = ServingConfig(engine=EngineConfig(max_num_seqs=4, max_model_len=1024, kv_cache_gb=0.25))
EVALUATION = EvalConfig(
    k=K,
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
    """The traffic of a run directory, captured."""
    run.mkdir()
    log = write_log(run / "log.jsonl", rows)
    ingest(nano_r1, TrafficConfig(path=str(log)), run, workers=0)
    table = load_sequences(run / "sequences")
    capture_table(
        engine,
        table,
        load_target_ends(nano_r1).lm_head_VH,
        {"run": str(run)},
        CaptureConfig(),
        run / "features",
    )
    ids = table["sequence_id"][:]
    parts = {"train": [], "validation": ids[:4], "heldout": ids[4:]}
    return EvaluationData(run / "sequences", parts, run / "features")


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


@pytest.fixture(scope="module", autouse=True)
def importable():
    """Engines import the slow drafter of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        yield


@pytest.fixture(scope="module")
def bench(nano_r1, tmp_path_factory):
    """Engine, servers, load generator, captured traffic, and `evaluate` on them."""
    home, patch = tmp_path_factory.mktemp("bench"), pytest.MonkeyPatch()
    target = TargetConfig(model=str(nano_r1))
    patch.setattr("outrider.serving.server.SWAP_EXTENSION", SLOW_DRAFTER_EXTENSION)
    with contextlib.ExitStack() as stack:
        stack.callback(patch.undo)
        speculators = {name: Speculator("mtp", nano_r1) for name in ("base", "custom")}
        running = stack.enter_context(Servers(target, SERVING, speculators, [K], home))
        engine = stack.enter_context(
            open_engine(
                target, SERVING.engine, Drafting(speculators["base"], K), extension=DRAFT_EXTENSION
            )
        )
        load = stack.enter_context(LoadGenerator(target, home / "load.log"))

        def servers(target, serving, speculators, *_):
            """The running servers, with the evaluation's speculators."""
            running._speculators |= speculators
            for each in running._up.values():
                each.loaded = None
            return contextlib.nullcontext(running)

        backends = Backends(
            servers=servers,
            engine=lambda *_, **__: contextlib.nullcontext(engine),
            load=lambda *_: contextlib.nullcontext(load),
        )
        traffic = captured(engine, nano_r1, home / "customer", logged("resume_screening", 24))

        def judged(custom, base=nano_r1, **settings):
            """The results of a whole evaluation of `custom` against the MTP layer of `base`."""
            out = home / f"{custom.parent.name}-{custom.name}-{base.parent.name}"
            both = {"base": Speculator("mtp", base), "custom": Speculator("mtp", custom)}
            context = EvaluationContext(
                recipe="refusals",
                target=TargetConfig(model=str(base)),
                serving=SERVING,
                settings=EVALUATION.model_copy(update=settings),
                depth=K,
                speculators=both,
                data=traffic,
                folders=EvaluationFolders(home, out, out, home),
                backends=backends,
            )
            evaluate(context)
            return Report.read(out / "report.json")

        yield SimpleNamespace(judged=judged, home=home)


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
    """The evaluation of nano R1's own layer against the weakened one."""
    return bench.judged(published(nano_r1, bench.home / "gains"), weakened)


@pytest.mark.slow
@pytest.mark.engine
def test_what_gains_ships_on_this_very_bench(gains):
    """Otherwise the refusals below would prove nothing."""
    assert gains.verdict.verdict == "ship", failed(gains)
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
    target, sampling = TargetConfig(model=str(nano_r1)), Sampling(0.0, 1.0)
    speculators = {name: Speculator("mtp", nano_r1) for name in ("base", "custom")}
    few = {"requests": 4, "repeats": LEAST_STARTS, "max_tokens": 24, "measure": "full"}
    settings = EVALUATION.model_copy(update=few)
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    prompts = [
        Prompt(f"q{number}", f"s{number}", "", ids, tokenizer.decode(ids))
        for number, row in enumerate(logged("resume_screening", 12))
        for ids in token_ids(row)[:1]
    ]
    speeds = SpeedRatios(settings, prompts, main=1)
    plan = {"base": K, "custom": K}
    with (
        LoadGenerator(target, tmp_path / "load.log") as load,
        Servers(target, SERVING, speculators, [K], tmp_path) as servers,
    ):
        blocks = measure(servers, "eager", plan, load, sampling, speeds, print)
    assert sum("base" in name for name in started) == LEAST_STARTS
    found = speeds.ratio(blocks, 1, "custom_over_base")
    slow = speeds.ratio([each for each in blocks if not each["repeat"]], 1, "custom_over_base")
    assert slow.value > 1.1, "nothing was planted"
    demand = Demand(SUPERIOR, "base", 1, found, settings.gate.min_speed_ratio, LEAST_STARTS)
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
