"""Shared state of an evaluation's stages: inputs, settings, folders, cache, backends.

    context = EvaluationContext(
        recipe="resume_screening", target=target, serving=serving, settings=EvalConfig(), depth=4,
        speculators={"base": Speculator("mtp", target.directory()), "custom": custom},
        data=EvaluationData(sequences, parts), folders=EvaluationFolders(run, out, report, logs),
    )
    run_evaluation(context)

Stages read the context and never change it. `context.backends` starts servers, engines and load
generators; tests replace it with `dataclasses.replace` instead of patching.
"""

import contextlib
import functools
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from datasets import Dataset
from pydantic import BaseModel
from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.common.fingerprint import CachedResult, file_digest, value_digest
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import Tables, load_sequences
from outrider.eval.bench.request_fields import RequestFields
from outrider.eval.bench.servers import Servers
from outrider.eval.config import RESPONSE_STATES, EvalConfig
from outrider.eval.kind_turns import draft_numbers
from outrider.eval.replay.slices import Slices
from outrider.eval.results.parts import Drafter
from outrider.eval.results.report import VERSION
from outrider.eval.results.sections import KindSpeed
from outrider.eval.stats.clusters import INDEPENDENT, users_unknown
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.engine import Engine, open_engine
from outrider.serving.load_generator import WARM_UP_TOKENS, LoadGenerator
from outrider.serving.runner import runner_of
from outrider.serving.server import Server
from outrider.serving.speculator import Speculator
from outrider.speculators.config import LookupConfig
from outrider.speculators.features import FeatureSpec
from outrider.speculators.kinds import installed_lookups, lookup_names
from outrider.speculators.kinds.protocol import Runner

Model = TypeVar("Model", bound=BaseModel)
Row = tuple[str, list[int], int]
"""A response with its prompt: id, token ids, start of the response."""


def with_users(table: Dataset, users: str) -> Dataset:
    """`table` with INDEPENDENT users if it names none and `users` (traffic.users) is known."""
    if users == "unknown" or not users_unknown(table["user"]):
        return table
    independent = [INDEPENDENT] * len(table)
    return table.remove_columns("user").add_column("user", independent)


@dataclass(frozen=True)
class EvaluationData:
    """Sequences of an evaluation, with their parts, states and slices."""

    sequences: Tables
    """Tables of sequences (`load_sequences`)."""
    parts: Mapping[str, list[str]]
    """Sequence ids by part: `validation` (to choose k), `heldout` (for all other measurements) and,
    if the recipe has general traffic, `general` (to measure forgetting)."""
    features: Path | None = None
    """Feature store of these sequences, which exact replay reads."""
    slices: Slices = field(default_factory=dict)
    """Slices of the held-out part for which acceptance is reported."""
    sessions: Mapping[str, str] = field(default_factory=dict)
    """Sessions by sequence id, if the split's sessions differ from the log's."""
    users: Literal["one", "many", "unknown"] = "unknown"
    """traffic.users"""

    def rows(self, ids: list[str]) -> Dataset:
        """Rows of the sequences `ids`, with the split's sessions.

        Their users are INDEPENDENT if the log names none and `users` is known.
        """
        return with_users(load_sequences(self.sequences, ids, self.sessions), self.users)


@dataclass(frozen=True)
class EvaluationFolders:
    """Folders of an evaluation."""

    run: Path
    """Run directory, which also holds the data for the report's other sections."""
    out: Path
    """The measurement cache."""
    report: Path
    """report.html, report.md and report.json."""
    logs: Path
    """Logs of servers and load generators."""
    trained: Path | None = None
    """Folder with metrics.jsonl of custom's training; None: the run's directory."""


@dataclass(frozen=True)
class Backends:
    """Constructors of servers, engines and load generators; tests replace them."""

    servers: Callable[..., AbstractContextManager[Servers]] = Servers
    engine: Callable[..., AbstractContextManager[Engine]] = open_engine
    load: Callable[..., AbstractContextManager[LoadGenerator]] = LoadGenerator


@dataclass(frozen=True)
class EvaluationContext:
    """Inputs and collaborators of one evaluation."""

    recipe: str
    """Name of the recipe."""
    target: TargetConfig
    serving: ServingConfig
    settings: EvalConfig
    """The recipe's `eval` section."""
    depth: int
    """`speculator.depth`, the largest k."""
    speculators: Mapping[Drafter, Speculator]
    """`base`, which is in use, and `custom`, which is judged against it."""
    data: EvaluationData
    folders: EvaluationFolders
    lookups: Mapping[str, Speculator] = field(default_factory=dict)
    """The lookups that custom is measured against, at their best settings, by kind; `with_lookups`
    (lookups.py) sets them."""
    lookup: LookupConfig = field(default_factory=LookupConfig)
    """Which responses a lookup searches."""
    kinds: Sequence[KindSpeed] = ()
    """Kinds compared on the validation part, the chosen one first; empty if there is only one."""
    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    k_per_batch_size: bool | Literal["auto"] = False
    """The recipe's `export.k_per_batch_size`."""
    show_samples: bool = False
    """Whether the report may contain example responses, which are customer text."""
    backends: Backends = Backends()
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Cluster on which exact replay runs as tasks."""
    console: Console = field(
        default_factory=lambda: Console(stderr=True, highlight=False), compare=False
    )

    def say(self, line: str) -> None:
        """Prints one line of progress."""
        self.console.print(line)

    @contextlib.contextmanager
    def open_servers(
        self,
        speculators: Mapping[str, Speculator],
        texts: Sequence[str],
        fields: RequestFields,
    ) -> Iterator[tuple[LoadGenerator, Servers]]:
        """Opens a load generator, and servers that start on first use.

        One server runs without speculation; the others serve `speculators`. Each warms up with a
        short block of the rendered prompts `texts` at the highest concurrency. Prompts are sent
        with their `fields`.
        """
        widest = max(self.settings.concurrency)
        first = list(itertools.islice(itertools.cycle(texts), widest))

        def warm_up(server: Server) -> None:
            self.say(f"warm-up, {server.log_path.stem}")
            load.run_block(
                url=server.url,
                prompts=first,
                concurrency=widest,
                sampling=Sampling(),
                max_tokens=WARM_UP_TOKENS,
            )

        with (
            self.backends.load(self.target, self.folders.logs / "load.log", None, fields) as load,
            self.backends.servers(
                target=self.target,
                serving=self.serving,
                speculators=speculators,
                numbers={
                    variant: self.draft_numbers(speculator)
                    for variant, speculator in speculators.items()
                },
                log_dir=self.folders.logs,
                side_by_side=self.settings.side_by_side,
                warm_up=warm_up,
                sample_method=self.draft_sample_method,
            ) as servers,
        ):
            yield load, servers

    def draft_numbers(self, speculator: Speculator) -> list[int]:
        """Numbers of drafts per step that may be measured, ascending."""
        numbers = draft_numbers(speculator, self.settings, self.depth)
        if self.by_batch_size and self.settings.k == "auto":
            return [0, *numbers]
        return numbers

    @contextlib.contextmanager
    def capture_states(self, rows: Callable[[Engine], Sequence[Row]]) -> Iterator[FeatureStore]:
        """Captures the states of the responses that `rows` returns.

        `rows` may use the engine. States reveal customer text, so they are removed on exit.
        """
        from outrider.data.features.capture import capture_ids

        scratch = self.folders.out / RESPONSE_STATES
        target_dir = self.target.directory()
        drafters = () if self.no_replay else self.speculators.values()
        features = FeatureSpec.union(speculator.features(target_dir) for speculator in drafters)
        eager = self.serving.engine.model_copy(update={"mode": "eager"})
        try:
            with self.backends.engine(self.target, eager) as engine:
                store = capture_ids(engine, rows(engine), scratch, features=features)
            yield store
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @functools.cached_property
    def no_replay(self) -> tuple[str, str] | None:
        """A speculator without exact replay, and why; None if both have it."""
        for speculator in (self.speculators["custom"], self.speculators["base"]):
            words = speculator.drafter_kind.in_words
            if not speculator.has_replay:
                return words, f"the drafts of {words} cannot be computed, only counted"
            if self.data.features is None:
                return words, f"no states were captured from which to compute the drafts of {words}"
            try:
                reads = speculator.features(self.target.directory())
                if reads.auxiliary:
                    reads.require(self.feature_store.spec, self.data.features)
            except OutriderError as error:
                return words, str(error)
        return None

    @functools.cached_property
    def one_engine(self) -> bool:
        """Whether base and custom take turns in one engine by weight swaps."""
        able = self.serving.engine.changes_drafters
        return able and self.speculators["custom"].swaps_with(self.speculators["base"])

    @property
    def variants(self) -> dict[str, Speculator]:
        """Base, custom and the lookups, by name in replay."""
        speculators = {str(name): speculator for name, speculator in self.speculators.items()}
        return {**self.lookups, **speculators}

    @functools.cached_property
    def by_batch_size(self) -> bool:
        """Whether the bundle, and base and custom here, use their best k for each batch size."""
        if self.k_per_batch_size != "auto":
            return self.k_per_batch_size
        settings = self.settings
        # Without two measured sizes and timed steps, there is nothing to schedule by.
        if settings.k != "auto" or len(settings.concurrency) == 1 or self.no_replay:
            return False
        return self.serving.engine.changes_drafters and all(
            # V1 gives up full CUDA graphs for a schedule (vllm/config/vllm.py:1039); V2 captures
            # them for every number of drafts (v1/worker/gpu/cudagraph_utils.py:268).
            self.runner(one) == "v2" and one.speculates and not one.drafter_kind.fixed_k
            for one in self.speculators.values()
        )

    def runner(self, speculator: Speculator) -> Runner:
        """The model runner of the speculator's engine."""
        return runner_of(speculator.drafter_kind, self.serving.engine)

    @property
    def base_has_own_k(self) -> bool:
        """Whether base's engine has a fixed k that may differ from custom's."""
        kind = self.speculators["base"].drafter_kind
        return kind.fixed_k and not self.one_engine and not kind.one_block

    @functools.cached_property
    def weights(self) -> dict[str, str]:
        """SHA-256 of each weight file of custom; empty if it has none."""
        return self.speculators["custom"].weights()

    @functools.cached_property
    def digest(self) -> str:
        """Digest of all inputs of the measurements."""
        target_dir = self.target.directory()
        base = self.speculators["base"]
        # Lookups search the training part's responses.
        parts = ("train", "validation", "heldout", "general")
        features = self.data.features
        base_weights = None if base.directory in (None, target_dir) else base.weights()
        # The manifest holds the digests of all shards.
        manifest = file_digest(features / "manifest.json") if features else None
        kinds = {name: speculator.kind for name, speculator in self.speculators.items()}
        inputs: dict[str, Any] = {
            "version": VERSION,
            "kinds": kinds,
            "settings": {name: dict(one.settings) for name, one in self.speculators.items()},
            "runners": {name: self.runner(one) for name, one in self.variants.items()},
            "speculator": self.weights,
            "base": base_weights,
            "target": file_digest(target_dir / "config.json"),
            "features": manifest,
            "parts": {name: self.data.parts.get(name) for name in parts},
            "lookup": self.lookup.model_dump(),
            "users": self.data.users,
            "histories": {name: one.history_digest for name, one in self.speculators.items()},
            "lookups": installed_lookups(),
            "depth": self.depth,
            "lookup_k": [speed.k for speed in self.kinds if speed.kind in lookup_names()],
            "serving": self.serving.model_dump(
                mode="json", exclude={"ignored_flags", "production_release"}
            ),
            "draft_sample_method": self.draft_sample_method,
            # The excluded keys affect only results that are computed from the measurements.
            # Blocks at the rates of a search remain valid with other limits.
            "evaluation": self.settings.model_dump(
                mode="json", exclude={"gate", "cost", "task", "slo", "capacity_minutes"}
            ),
            "near_tie_nats": self.settings.gate.near_tie_nats,
        }
        if self.by_batch_size:
            # Absent otherwise, so that measurements of a fixed k keep their digest.
            inputs["by_batch_size"] = True
        return value_digest(inputs)

    def cached_result(self, name: str) -> CachedResult:
        """Cache file of a measurement; private, because responses are customer text."""
        return CachedResult(self.folders.out / "steps" / f"{name}.json", self.digest, private=True)

    @functools.cached_property
    def feature_store(self) -> FeatureStore:
        """The opened feature store of the sequences."""
        assert self.data.features
        return FeatureStore.open(self.data.features)

    def cached_measurement(self, name: str, model: type[Model], work: Callable[[], Model]) -> Model:
        """Returns the measurement `name` from the cache, or runs and caches `work`."""
        return model.model_validate(
            self.cached_result(name).run(lambda: work().model_dump(mode="json"))
        )
