"""The model of report.json.

    Report.read(Path("runs/resume_screening/report.json")).verdict.verdict

docs/reference/report.schema.json is generated from `Report` (`make reference`);
docs/how-to/read-a-report.md explains how to use the figures. The counts of the data stages
(`traffic`, `privacy`, `on_policy`) and the settings are documented on their own pages.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.eval.results.parts import (
    DOCUMENTED,
    RATIOS,
    VARIANTS,
    ClusteredEstimate,
    Drafters,
    Estimate,
    Part,
    Variants,
    interval,
    k_list,
)
from outrider.eval.results.sections import (
    BothTogether,
    Capacity,
    Cost,
    EngineAcceptance,
    HistoryFacts,
    KChoice,
    KindSpeed,
    OnPolicy,
    RateRow,
    Replay,
    Scenario,
    ServedSpeed,
    Slice,
    SpeedRow,
    Verification,
    Workload,
)
from outrider.speculators.kinds import kind_named, lookup_names
from outrider.speculators.kinds.protocol import Runner

VERSION = 19
"""Version of the measurements and of report.json. Raise it when the same settings would give
different measurements or the shape of report.json changes."""


Outcome = Literal["passed", "failed", "undecided"]


class Check(Part):
    """A condition for the verdict `ship`."""

    name: str
    """Name of the check"""
    outcome: Outcome
    """`undecided`: the measurement shows neither that the condition holds nor that it fails"""
    seen: str
    """The measurement, in words"""
    demand: str
    """The gate's requirement, in words; if undecided, also what would decide it"""


class Verdict(Part):
    """The verdict and its checks."""

    verdict: Literal["ship", "do not ship", "undecided"]
    """`do not ship` if a check failed; else `undecided` if a check is undecided; else `ship`"""
    reason: str
    """The first failed or undecided check; for `ship`, the gains"""
    checks: list[Check]
    """All checks"""


class SpeculatorIdentity(Part):
    """The evaluated speculator."""

    kind: str
    """Its kind: a value of `speculator.kind` or of `speculator.base`"""
    weights_sha256: str | None
    """Digest of its weights, identical across runs of the same speculator; null without weights"""
    settings: dict[str, float] = Field(default_factory=dict)
    """vLLM's settings of a lookup, chosen on the validation part; empty with weights"""
    history: HistoryFacts | None = None
    """The responses that a lookup searches; null with weights"""


class RequestSampling(Part):
    """The most frequent sampling settings in the customer's requests."""

    temperature: float
    """Temperature"""
    top_p: float
    """Probability mass of nucleus sampling"""
    top_k: int = 0
    """Number of most likely tokens to sample from; 0: no limit"""


class Walk(Part):
    """A response, step by step, with one speculator."""

    steps: int
    """Number of engine steps"""
    shown: list[tuple[str, str]]
    """Beginning of the response: for the prefill and each step, the text of the accepted drafts and
    of the target's own token"""


class Example(Drafters[Walk]):
    """An example response: customer text, only with report.samples."""

    model_config = DOCUMENTED

    place: str
    """Why this response was chosen: custom gains least, a typical amount, or most"""
    tokens: int
    """Number of tokens delivered by engine steps: all but the first"""


class Findings(Part):
    """All measurements of an evaluation, before prices and verdict."""

    version: int = VERSION
    """Version of the measurements and of report.json"""
    recipe: str
    """Name of the recipe"""
    run_dir: str
    """The run's directory"""
    target: str
    """target.model"""
    speculator: SpeculatorIdentity
    """The custom speculator"""
    heldout_until: float | None
    """Time of the last held-out request, Unix seconds; null if the log has no times"""
    by_batch_size: bool = False
    """Whether speculators were served with `choice.k_per_batch_size` (export.k_per_batch_size)"""
    choice: KChoice
    """How k was chosen"""
    sampling: RequestSampling
    """The customer's sampling settings"""
    draft_sample_method: Literal["greedy", "probabilistic"]
    """speculator.draft_sample_method"""
    not_measured: dict[str, str]
    """Figure -> why it is not measured; empty with exact replay"""
    missing_lookups: dict[str, str] = Field(default_factory=dict)
    """Lookup that was not measured -> why, and what installs it"""
    lost_ends: tuple[str, ...] = ()
    """Responses cut off by length limits, prompts too long to send, and the settings to raise"""
    own_text: OnPolicy | None
    """Whether the held-out text is on-policy; null if capture kept no evidence"""
    replay: Replay | None
    """Acceptance by exact replay at custom's K, whose ratio the verdict uses; null if not
    measured"""
    general: Replay | None
    """The same on general traffic; null without traffic.general"""
    both_together: BothTogether | str
    """Custom and the fastest lookup in one server, predicted by replay; or why it is not"""
    workloads: dict[str, Workload] = Field(default_factory=dict)
    """Public workload of eval.general -> its acceptance"""
    slices: dict[str, list[Slice]]
    """Dimension -> its slices"""
    counted: EngineAcceptance
    """Acceptance from vLLM's counters, pooled over all passes at `choice.k`"""
    runners: Variants[Runner]
    """vLLM's model runner of each variant; `choice.lookups` has those of lookups"""
    served: dict[str, ServedSpeed]
    """Engine mode -> speed"""
    rates: dict[str, dict[str, dict[str, RateRow]]]
    """Engine mode -> scenario -> requests per second -> speed; empty without eval.rates"""
    capacity: dict[str, Capacity] = Field(default_factory=dict)
    """Engine mode -> requests/s within eval.slo; empty if eval.capacity_minutes is 0"""
    scenarios: dict[str, Scenario]
    """Scenario -> its requests"""
    verification: Verification
    """Lossless checks, and replay compared with the engine"""
    samples: list[Example] | None
    """Example responses; null without report.samples"""
    settings: dict[str, object]
    """The recipe's `eval` section (docs/reference)"""

    @property
    def acceptance_ratio(self) -> ClusteredEstimate:
        """custom / base by replay at custom's K, else by vLLM's counters.

        The counters are collected at each speculator's own K; without replay, base and custom have
        different K only if base's engine has a fixed K.
        """
        return (self.replay or self.counted).ratio

    @property
    def acceptance_k(self) -> Drafters[int]:
        """K of base and of custom in `acceptance_ratio`."""
        k = self.choice.k
        if self.replay is None:
            return k
        return Drafters[int](base=self.replay.k, custom=self.replay.k)

    @property
    def at_k(self) -> str:
        """`acceptance_k` in words."""
        k = self.acceptance_k
        return f"{'both ' if k.base == k.custom else ''}at K = {k_list(k)}"

    @property
    def runners_in_words(self) -> str:
        """The model runner of each served variant, and which speeds compare two runners."""
        runners: dict[str, Runner] = {name: self.runners.of(name) for name in VARIANTS}
        ratios: list[tuple[str, str]] = [*RATIOS.values()]
        if self.choice.lookup is not None:
            lookup = self.lookup_in_words
            runners[lookup] = self.choice.lookups[self.choice.lookup].runner
            ratios.append(("custom", lookup))
        if len(set(runners.values())) == 1:
            return f"All are served by vLLM's model runner {self.runners.none.upper()}."
        variants_of: dict[Runner, list[str]] = {}
        for name, runner in runners.items():
            variants_of.setdefault(runner, []).append(name)
        of_runner = [
            f"{runner.upper()} for {', '.join(names)}"
            for runner, names in sorted(variants_of.items())
        ]
        across = [f"{a} / {b}" for a, b in ratios if runners[a] != runners[b]]
        return (
            f"vLLM's model runner is {' and '.join(of_runner)}. Ratios of tokens/s across runners"
            f" also compare the runners: {', '.join(across)}."
        )

    @property
    def lookup_in_words(self) -> str:
        """The served lookup in words."""
        assert self.choice.lookup is not None
        return kind_named(self.choice.lookup).in_words

    @property
    def lookups_in_words(self) -> str:
        """What each replayed lookup delivers at its own K, in one clause; empty if none was."""
        if self.replay is None:
            return ""
        clauses = [
            f"{kind_named(name).in_words} (K = {self.choice.lookups[name].k}) {length.value:.2f}"
            for name, length in self.replay.lookups.items()
        ]
        return ", ".join(clauses)

    @property
    def estimated_lines(self) -> list[str]:
        """What custom / base is an estimate of in each engine mode, next to what was served."""
        lines = []
        for mode, served in self.served.items():
            ratio = served.speed[str(self.choice.main_concurrency)].custom_over_base
            if ratio.measured is None or ratio.expected is None:
                continue
            line = (
                f"Custom / base, {mode}: {interval(ratio)} for whole responses, by measured times"
                f" of prefills and steps and exact replay's steps. {served.cut:.0%} of the timed"
                f" responses were cut; for them, replay predicts {ratio.expected:.2f}, and"
                f" {interval(ratio.measured)} was served. On average,"
                f" {served.timed_context:,.0f} tokens precede a token of these responses, and"
                f" {served.whole_context:,.0f} one of whole responses."
            )
            if ratio.heldout is not None:
                line += (
                    f" For the held-out traffic itself it is {ratio.heldout:.2f}; the trend within"
                    " validation and held-out time gives that of the traffic that follows."
                )
            lines.append(line)
        return lines

    @property
    def both_line(self) -> str:
        """Custom and the fastest lookup in one server, in sentences."""
        both = self.both_together
        if isinstance(both, str):
            return f"Custom and a lookup together, by replay: not predicted ({both})."
        lookup = kind_named(both.lookup).in_words
        line = (
            f"Both together (by replay): a server in which custom (K = {both.k}) or {lookup}"
            f" (K = {both.lookup_k}) drafts at each step, by a rule fitted on validation, would"
            f" deliver {interval(both.tokens_per_step)} tokens per step, with the best choice"
            f" {both.upper_bound:.2f}. {lookup.capitalize()} drafts in {both.lookup_share:.0%} of"
            " the steps."
        )
        if both.over_custom and both.over_lookup and both.step_ms:
            line += (
                f" Predicted tokens/s: {interval(both.over_custom)} of custom alone,"
                f" {interval(both.over_lookup)} of {lookup} alone. A step takes"
                f" {both.step_ms['custom']:.1f} ms if custom drafts, and {both.step_ms['both']:.1f}"
                f" if {lookup} does, with one pass of custom for its KV cache."
            )
        return f"{line} No engine serves this: vLLM runs one method per server."

    @property
    def unmeasured_lookups(self) -> list[str]:
        """A sentence for each lookup that was not measured, or only with tenants' names."""
        lines = [
            f"{kind_named(name).in_words.capitalize()}, which needs no training, was not measured:"
            f" {why}."
            for name, why in self.missing_lookups.items()
        ]
        for name, lookup in self.choice.lookups.items():
            history = lookup.history
            if history is None or history.without_salt == history.responses:
                continue
            lines.append(
                f"{kind_named(name).in_words.capitalize()} was measured with requests that name"
                " their tenant (cache_salt), as the log has several: production must send it, too."
                f" A request without it searches {history.without_salt:,} of"
                f" {history.responses:,} earlier responses. With lookup.shared: true, all requests"
                " search all of them."
            )
        return lines

    @property
    def lookup_sources(self) -> str:
        """What each replayed lookup drafts, in sentences."""
        kinds = [kind_named(name) for name in self.choice.lookups]
        words = [f"{kind.in_words.capitalize()} drafts {kind.source_of_drafts}" for kind in kinds]
        return ". ".join(words)


class Report(Findings):
    """report.json: measurements, prices, the verdict, and facts about the run."""

    cost: dict[str, dict[str, Cost]] | None
    """Engine mode -> concurrency -> cost; null without eval.cost"""
    verdict: Verdict
    """The verdict"""
    kinds: list[KindSpeed] = Field(default_factory=list)
    """Kinds compared on the validation part, the chosen one first; empty if there is only one"""
    traffic: dict[str, object] | None = None
    """Counts from ingest (docs/how-to/log-formats.md); null if the run has none"""
    privacy: dict[str, object] | None = None
    """Counts of personal data (docs/how-to/privacy.md); null with privacy.mode off"""
    on_policy: dict[str, object] | None = None
    """The capture's on-policy check (docs/explanation/traffic.md); null without a capture"""
    further_answers: int = 0
    """Answers of the target to logged prompts that training used besides the log's
    (capture.answers_up_to)"""
    provenance: dict[str, object] = Field(default_factory=dict)
    """Command line, versions, commit, hardware, digests of the recipe files; empty outside a run"""

    @property
    def lookup_line(self) -> str:
        """Advice to ship lookup; empty if it does not apply."""
        if self.speculator.kind in lookup_names() and self.verdict.verdict == "ship":
            words = kind_named(self.speculator.kind).in_words
            text = f"Ship {words}, which needs neither training nor weights"
            # Kinds are in order of speed, so the first trained one is the fastest.
            best = next((kind for kind in self.kinds if kind.over_lookup), None)
            if best and best.over_lookup:
                text += ": no trained kind is shown to be faster on validation"
                text += f" ({best.kind} / lookup {interval(best.over_lookup)})"
            return f"{text}."
        if self._over_lookup is None:
            return self._none_line()
        mode, ratio = self._over_lookup
        name = self.choice.lookup
        return (
            f"{self.lookup_in_words.capitalize()}, which needs no training, is"
            f" {'faster' if ratio.high < 1 else 'as fast'} ({mode}: custom / lookup"
            f" {interval(ratio)}): ship it instead. `outrider eval RECIPE --speculator {name}`"
            " evaluates it."
        )

    @property
    def better_lookup(self) -> str | None:
        """The served lookup if custom is not shown to be faster in every mode; else None.

        It must also deliver more tokens/s than base and than no speculation.
        """
        return self.choice.lookup if self._over_lookup else None

    @property
    def _main_rows(self) -> dict[str, SpeedRow]:
        """Speeds at the main concurrency, by engine mode."""
        main = str(self.choice.main_concurrency)
        return {mode: served.speed[main] for mode, served in self.served.items()}

    @property
    def _over_lookup(self) -> tuple[str, Estimate] | None:
        """The first mode in which `better_lookup` is better, and custom / lookup there."""
        for mode, row in self._main_rows.items():
            reference = max(row.none.tokens_per_s, row.base.tokens_per_s)
            if row.lookup is None or row.lookup.block.tokens_per_s <= reference:
                continue
            if row.lookup.custom_over.low <= 1:
                return mode, row.lookup.custom_over
        return None

    def _none_line(self) -> str:
        """Advice to serve without speculation, if nothing measured is faster; else empty."""
        slower = [
            row.custom_over_none.high < 1 and row.base_over_none.high < 1
            for row in self._main_rows.values()
        ]
        if not slower or not all(slower):
            return ""
        return (
            "Serve without speculation: both base and custom are shown to be slower than the"
            f" target alone at concurrency {self.choice.main_concurrency}."
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Loads a report.json; raises an `OutriderError` for an unexpected version or shape."""
        value = read_json(path)
        version = value.get("version") if isinstance(value, dict) else None
        if version != VERSION:
            raise OutriderError(
                f"{path}: version {version}, but this Outrider reads {VERSION}; run `outrider eval"
                " RECIPE` again"
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise OutriderError(
                f"{path}: {where}: {first['msg']}; delete the file and evaluate again, which writes"
                " it from the cached measurements"
            ) from None

    def write(self, path: Path) -> None:
        """Publishes the report; with customer text, only its owner can read it."""
        write_json(path, self.model_dump(mode="json"), private=self.samples is not None)
