"""A small real evaluation: servers, load, verification and capture in vLLM, and its files."""

import contextlib
import functools
import itertools
import json
import os
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from transformers import AutoTokenizer

from outrider.common.child_process import in_child
from outrider.common.cluster.config import ClusterConfig
from outrider.common.files import read_json
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.bench import capacity, step_times
from outrider.eval.bench.prompts import EVERYTHING
from outrider.eval.bench.servers import Servers
from outrider.eval.bench.step_times import StepPrompts, time_steps
from outrider.eval.config import EvalConfig, GateConfig
from outrider.eval.context import (
    Backends,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
)
from outrider.eval.evaluate import run_evaluation
from outrider.eval.replay.replay import replay
from outrider.eval.results.parts import CURRENT, VARIANTS
from outrider.eval.results.report import Report
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator
from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.eval.sample_results import EVALUATION, served_measurements
from tests.tiny import save_drafter, write_tiny_target

TEXTS = [
    "How many apples are left?",
    "List the total of this receipt.",
    "Is this candidate a fit?",
    "Where is my order?",
]


def _case(target, run, prompt, completion, depth, grammar=""):
    """A run directory up to the evaluation: six held-out responses, three for validation.

    The states are random, and the custom speculator's projection is noise.
    `prompt(number)` gives text and token ids. Requests with an odd number have the grammar.
    """
    from datasets import Dataset

    torch.manual_seed(0)
    rows = []
    for number in range(9):
        text, prompt_ids = prompt(number)
        rows.append(
            {
                "sequence_id": f"q{number}",
                "session": f"s{number}",
                "user": "",
                "tenant": "",
                "time": 1.7e9 + 60 * number,
                "token_ids": prompt_ids + completion,
                "completion_start": len(prompt_ids),
                "temperature": 0.6,
                "top_p": 0.95,
                "top_k": 0,
                "constraint": "",
                "grammar": grammar if number % 2 else "",
                "prompt_text": text,
            }
        )
    Dataset.from_list(rows).save_to_disk(run / "sequences")
    hidden_size = read_json(target / "config.json")["hidden_size"]
    spec = FeatureSpec(()).stored(hidden_size)
    with FeatureWriter(run / "features", spec, {"made": "by a test"}) as writer:
        for row in rows:
            states = SequenceStates(
                token_ids=torch.tensor(row["token_ids"]),
                completion_start=row["completion_start"],
                streams={FINAL_NORM: torch.randn(len(row["token_ids"]), hidden_size)},
            )
            writer.write(row["sequence_id"], states)
    speculator = load_mtp(target)
    with torch.no_grad():
        speculator.eh_proj.weight.normal_(std=float(speculator.eh_proj.weight.std()))
    save_drafter(speculator, target, run / "speculator")
    ids = [row["sequence_id"] for row in rows]
    workload = run / "gsm8k.jsonl"
    workload.write_text("".join(json.dumps({"question": f"{n} + {n}?"}) + "\n" for n in range(3)))
    context = EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(target)),
        speculators={
            "base": Speculator.from_name(target),
            "custom": Speculator.from_name(run / "speculator"),
        },
        data=EvaluationData(
            run / "sequences",
            {"train": [], "validation": ids[6:], "heldout": ids[:6]},
            run / "features",
            {"tenant": {"first": ids[:3], "second": ids[3:]}},
        ),
        folders=EvaluationFolders(run, run / "evaluation", run, run / "logs"),
        depth=depth,
        serving=ServingConfig(
            engine=EngineConfig(max_num_seqs=8, max_model_len=512, kv_cache_gb=0.25)
        ),
        settings=EvalConfig(
            k=2,
            lookup="ngram",
            engine_modes=["eager"],
            concurrency=[1, 2],
            requests=2,
            repeats=2,
            starts=1,
            max_tokens=12,
            rates=[4],
            rate_seconds=1.5,
            verification_requests=4,
            verification_max_tokens=24,
            general={"gsm8k": str(workload)},
        ),
    )
    return SimpleNamespace(run=run, context=context)


@pytest.mark.slow
def test_measurements_are_kept_and_results_computed_again(tmp_path, nano_r1, capsys):
    """Everything but the engine, on the tiny target, whose served measurements are in the cache."""
    target = write_tiny_target(tmp_path / "target")
    case = _case(
        target,
        tmp_path / "run",
        lambda number: (f"prompt {number}", [*range(2, 8 + number)]),
        list(range(10, 22)),
        depth=4,
    )
    out = case.run / "evaluation"

    def evaluated(**settings):
        """The line of an evaluation with these settings, and its results."""
        show_samples = settings.pop("show_samples", False)
        update = {"k": 3, "engine_modes": ["eager"]} | settings
        context = replace(
            case.context,
            settings=EVALUATION.model_copy(update=update),
            show_samples=show_samples,
        )
        digests.append(context.digest)
        if not context.cached_result("speed_eager").done():
            for name, measured in served_measurements(1.4, prompts=6).items():
                context.cached_result(name).put(measured)
        return run_evaluation(context), Report.read(case.run / "report.json")

    def written_at():
        return {path.name: path.stat().st_mtime_ns for path in (out / "steps").iterdir()}

    digests = []
    line, results = evaluated()
    assert line["k"] == {"base": 3, "custom": 3} and results.counted.ratio.value > 1.2
    assert line["acceptance_length"]["ratio"] == results.replay.ratio.value
    assert results.replay.ratio.observations == 6 and results.replay.ratio.clusters == 6
    assert len(results.replay.by_k["custom"]) == 4
    both = results.both_together  # with eval.k, no steps are timed
    assert (both.lookup, both.k, both.lookup_k) == ("ngram", 3, 2) and both.step_ms is None
    assert 1 <= both.tokens_per_step.value <= both.upper_bound
    assert set(written_at()) - set(map("{}.json".format, served_measurements(1.4, prompts=6))) == {
        "replay_heldout_base.json",
        "replay_heldout_custom.json",
        "replay_heldout_ngram.json",
        "replay_heldout_ceiling.json",
        "replay_validation_base.json",
        "replay_validation_custom.json",
        "replay_validation_ngram.json",
        "settings_ngram.json",
    }
    # The first result is printed before anything that needs an engine, for every k.
    printed = " ".join(capsys.readouterr().err.split())
    first = printed.index("First result, acceptance length by exact replay: 6 held-out responses")
    assert first < printed.index("exact replay, validation") < printed.index("k = 3 for base")

    before = written_at()
    line, _ = evaluated(gate=GateConfig(min_speed_ratio=2.0))
    assert line["verdict"] == "do not ship" and written_at() == before
    evaluated(max_tokens=99)
    assert digests[0] == digests[1] != digests[2]

    assert results.samples is None
    (target / "tokenizer.json").symlink_to(nano_r1 / "tokenizer.json")
    _, shown = evaluated(show_samples=True)
    examples = shown.samples
    assert digests[3] == digests[0] and len(examples) == 3
    assert all(example.tokens == 11 for example in examples)
    # A base without weights is replayed from the text alone.
    own = case.context
    weightless = Speculator("ngram")
    case.context = replace(own, speculators=own.speculators | {"base": weightless})
    _, against_lookup = evaluated(show_samples=True)
    assert against_lookup.replay.by_k["base"] == results.replay.by_k["ngram"]
    assert not against_lookup.replay.lookups
    assert against_lookup.replay.by_k["ceiling"] == results.replay.by_k["ceiling"]
    assert against_lookup.samples is None and not against_lookup.not_measured
    case.context = own
    _, hidden = evaluated()
    assert hidden.samples is None


def children():
    """Live descendants of this process, resource trackers of its pools included."""
    living = psutil.Process().children(recursive=True)
    return {child.pid for child in living if child.status() != psutil.STATUS_ZOMBIE}


def written(run):
    """The servers' logs and their modification times."""
    return {path: path.stat().st_mtime_ns for path in run.rglob("server_*.log")}


class Started(Exception):
    """Servers would start now."""


@pytest.mark.parametrize("address", [None, "auto"])
def test_all_replays_end_before_servers_take_the_memory(tmp_path, monkeypatch, address):
    """Ray itself: tests/common/cluster/test_tasks.py, tests/eval/replay/test_cluster_replay.py."""
    happened = []

    @contextlib.contextmanager
    def noted(*_):
        happened.append("cluster")
        yield
        happened.append("cluster ends")

    def servers(**_):
        raise Started

    module = "outrider.eval.replay.heldout_replay"
    monkeypatch.setattr(f"{module}.open_cluster", noted)
    monkeypatch.setattr(
        f"{module}.cluster_replay", lambda shared, rows: replay(rows=rows, **shared)
    )
    target = write_tiny_target(tmp_path / "target")
    case = _case(target, tmp_path / "run", lambda n: (f"prompt {n}", [*range(2, 8 + n)]), [3, 4], 1)
    parts = {**case.context.data.parts, "general": ["q0"]}
    context = replace(
        case.context,
        settings=case.context.settings.model_copy(update={"k": 1}),
        data=replace(case.context.data, parts=parts),
        backends=Backends(servers=servers),
        cluster=ClusterConfig(address=address),
    )
    with pytest.raises(Started):
        run_evaluation(context)
    kept = {path.stem for path in (case.run / "evaluation" / "steps").iterdir()}
    drafters = ("base", "custom")
    assert kept >= {
        f"replay_{part}_{name}" for part in parts if part != "train" for name in drafters
    }
    # Base and custom of three parts, and the ceiling of two; lookup needs no cluster.
    assert happened == ["cluster", "cluster ends"] * (8 if address else 0)


DEPTH = 3


def cached_tokens(server):
    """Prompt tokens that two equal requests, one after the other, found in the prefix cache."""
    counts = []
    for _ in range(3):
        with urllib.request.urlopen(server.url + "/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        hits = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
        counts.append(sum(float(line.split()[-1]) for line in hits))
        if len(counts) < 3:
            prompt = [0, *range(10, 449)]
            complete(
                url=server.url,
                model=server.model_name,
                prompts=[prompt],
                sampling=Sampling(0.0, 1.0),
                max_tokens=4,
                concurrency=1,
            )
    return [after - before for before, after in itertools.pairwise(counts)]


def check_server_of_both(servers, load, speculators):
    """One server drafts what each variant does, and starts each turn with an empty cache."""
    sampling = Sampling(0.6, 0.95)
    times = time_steps(
        servers=servers,
        mode="eager",
        load=load,
        numbers={"custom": range(3)},
        batch_sizes={"custom": [3]},
        prompts=StepPrompts(TEXTS, [20] * len(TEXTS), prompt_share=1.0),
        sampling=sampling,
        speculators=speculators,
    )
    (row,) = times.seconds["custom"].values()
    assert set(row) == {0, 1, 2} and min(row.values()) > 0
    assert times.prefill["custom"][3] > 0
    speculating = servers.server("eager", "base", 1)
    # One number, another, none, and a schedule by batch size.
    plan = {"base": 1, "custom": DEPTH, CURRENT: [(1, 1, DEPTH), (2, 8, 0)]}
    counts = {}
    for variant, drafts in plan.items():
        assert servers.server("eager", variant, drafts) is speculating
        before = speculating.counters()
        prompts = [[0, 17, 4]] * (3 if variant == CURRENT else 1)
        complete(
            url=speculating.url,
            model=speculating.model_name,
            prompts=prompts,
            sampling=sampling,
            max_tokens=40,
            concurrency=len(prompts),
        )
        counts[variant] = speculating.counters() - before
    for variant, k in (("base", 1), ("custom", DEPTH)):
        assert counts[variant].drafts > 0
        assert counts[variant].draft_tokens == k * counts[variant].drafts
    # Three at once draft nothing, the last one alone DEPTH tokens.
    assert counts[CURRENT].draft_tokens == DEPTH * counts[CURRENT].drafts
    assert counts[CURRENT].drafts < counts[CURRENT].generation_tokens / 2
    # A turn's second request finds the first one's prompt, its first one nothing of other turns.
    turns = (("base", 1), ("custom", 3), ("custom", 3))
    hits = [cached_tokens(servers.server("eager", *turn)) for turn in turns]
    assert [first for first, _ in hits] == [0] * 3
    assert min(second for _, second in hits) > 100, hits


@pytest.mark.engine
def test_an_evaluation_from_servers_to_report(short_r1, tmp_path, monkeypatch):
    """Two servers and one engine, for workload and verification; lookup has its own tests.

    The custom speculator is worse: its projection is noise.
    """
    tokenizer = AutoTokenizer.from_pretrained(short_r1)

    def prompt(number):
        conversation = [{"role": "user", "content": f"{TEXTS[number % 4]} ({number})"}]
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        return text, tokenizer.encode(text, add_special_tokens=False)

    completion = tokenizer.encode("one, two, three, four", add_special_tokens=False)
    grammar = json.dumps({"regex": "[a-z ,.]{12,40}"})
    case = _case(short_r1, tmp_path / "run", prompt, completion, depth=3, grammar=grammar)
    in_child(os.getpid)  # starts the server that children are forked from, which stays
    before = children()
    monkeypatch.setattr(step_times, "STEP_ROUNDS", 1)
    monkeypatch.setattr(step_times, "STEP_TOKENS", 24)
    monkeypatch.setattr(capacity, "LEAST_SENT", 6)
    monkeypatch.setattr(capacity, "BLOCK_SECONDS", 0.5)
    for module in ("evaluate", "choose_k"):
        monkeypatch.setattr(f"outrider.eval.{module}.served_lookups", lambda *_: {})
    loads = []
    opened = contextlib.ExitStack()

    @contextlib.contextmanager
    def load(*arguments):
        with LoadGenerator(*arguments) as generator:
            loads.append(generator)
            yield generator

    @contextlib.contextmanager
    def servers(serving, speculators, numbers, **settings):
        """Real ones that may draft any number; the evaluation's own checks end with ours."""
        with Servers(
            serving=serving,
            speculators=speculators,
            numbers=dict.fromkeys(speculators, range(DEPTH + 1)),
            **settings,
        ) as running:
            yield running
            check_server_of_both(running, *loads, speculators)

    @functools.cache
    def shared():
        eager = case.context.serving.engine.model_copy(update={"mode": "eager"})
        return opened.enter_context(open_engine(case.context.target, eager))

    def engine(*_):
        return contextlib.nullcontext(shared())

    with opened:
        backends = Backends(servers=servers, load=load, engine=engine)
        settings = case.context.settings.model_copy(update={"capacity_minutes": 0.6})
        case.context = replace(case.context, settings=settings)
        line = run_evaluation(replace(case.context, backends=backends))
    out = case.run / "evaluation"
    results = Report.read(case.run / "report.json")

    speed = line["tokens_per_s"]["eager"]
    assert set(speed) == {"1", "2"} and all(speed["1"][variant] > 0 for variant in VARIANTS)
    assert line["k"] == {"base": 2, "custom": 2} and 1 <= line["acceptance_length"]["base"] <= 3
    alternated = {
        (block["concurrency"], block["variant"])
        for block in read_json(out / "steps" / "speed_eager.json")["result"]
        if block["alternated"]
    }
    assert alternated >= {(1, "base"), (1, "custom")}
    assert {concurrency for concurrency, _ in alternated} == {1}
    assert results.served["eager"].speed["1"].custom_over_base.clusters == 4  # pairs
    # Prompts shorter than a block of 128 tokens share no prefix.
    cache = results.served["eager"].speed["1"].custom.cache
    assert cache.hit_rate == cache.production_hit_rate == 0 and cache.kv_tokens > 1000
    counted = results.counted.base
    assert counted.steps > 0 and len(counted.cumulative) == 2

    # The open loop, counted by the engine.
    row = results.rates["eager"][EVERYTHING]["4"]
    assert row.arrivals == "log" and results.scenarios[EVERYTHING].requests == 6
    for variant in VARIANTS:
        figures = row.of(variant)
        assert figures.requests == 6
    assert row.base.acceptance_length > row.none.acceptance_length == 1

    # Capacity, for which a few seconds decide nothing.
    capacities = results.capacity["eager"]
    assert capacities.none.blocks > 0 and capacities.ttft_ms > 0 < capacities.tpot_ms
    assert capacities.limits_from == "no speculation, concurrency 1"

    # The engine ran the speculators that replay computes: the same steps for the same responses,
    # also for those under a grammar.
    assert line["acceptance_length"]["ratio"] < 0.95
    found = results.verification.modes["eager"]
    against = found.replay_vs_engine
    greedy = found.greedy
    # One of 37 to 60 steps is 1.7 to 2.7 %. vLLM does not count steps whose drafts the grammar
    # forbids; `Speculator.steps` adds them, but for those of responses that end on accepted drafts,
    # of which there are up to eight. Two of three runs differed by 3 %, one by 8 %.
    assert abs(against.base) < 0.14 and abs(against.custom) < 0.14
    assert greedy.base.unexplained == greedy.custom.unexplained == []
    assert found.greedy_acceptance_length.custom > 1
    asked = results.workloads["gsm8k"]
    assert asked.ratio.observations == 3 and asked.by_k["base"][2] > asked.by_k["custom"][2]
    # Of 68 sampled tokens, some of which a grammar forced, about 9 % are unlikely: three standard
    # errors of the difference are 0.15.
    assert abs(found.tail_share.custom - found.tail_share.none) < 0.15
    assert not (out / "response_states").exists()
    assert (case.run / "report.html").is_file()
    assert results.verdict.verdict == line["verdict"]

    # Measurements are kept: no server starts again, and none is left.
    logs = written(case.run)
    again = run_evaluation(replace(case.context))
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}
    assert logs and again["tokens_per_s"] == line["tokens_per_s"]
    assert written(case.run) == logs
    assert children() <= before
