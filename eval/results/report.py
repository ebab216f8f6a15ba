"""The whole of results.json and report.json.

    Results.read(Path("runs/resume_screening/evaluation/results.json")).verdict.verdict

docs/report.md and docs/report.schema.json are generated from `Report`:
`python -m outrider.eval.report.schema_reference`. What the data room counts (`traffic`,
`on_policy`) and the settings have their own pages and are not described again.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.eval.results.acceptance import Counted, Mixture, OnPolicy, Replay, Slice
from outrider.eval.results.kinds import Kinds
from outrider.eval.results.parts import DOCUMENTED, ClusteredEstimate, Drafters, Part, k_list
from outrider.eval.results.prediction import Choice, Cost
from outrider.eval.results.speed import RateRow, Scenario, Served
from outrider.eval.results.verification import Verification

VERSION = 10
"""Version of the measurements and of results.json. Raise it when the same settings measure
something else, or when the shape of results.json changes."""


Outcome = Literal["passed", "failed", "undecided"]


class Check(Part):
    """A condition of the verdict."""

    name: str
    """What was checked"""
    outcome: Outcome
    """`undecided`: the measurement shows neither that the condition holds nor that it fails"""
    needed: bool = True
    """Whether `ship` needs it to pass; otherwise it must only not fail"""
    seen: str
    """What was measured, in words"""
    demand: str
    """What the gate demands, in words; where undecided, what would decide it"""


class Verdict(Part):
    """The verdict."""

    verdict: Literal["ship", "do not ship", "undecided"]
    """`do not ship` where a check failed; else `undecided` where one that is needed is undecided;
    else `ship`"""
    reason: str
    """The first check that failed or is undecided, or what was gained"""
    exit_code: int
    """Exit status of the command: 0 or 2"""
    checks: list[Check]
    """Every condition"""
    unchecked: dict[str, str]
    """What could not be checked, and why; empty where exact replay is measured"""


class SpeculatorIdentity(Part):
    """Which speculator was evaluated."""

    kind: str
    """Its kind, such as `mtp`, `eagle3`, `ngram` or `none`"""
    in_words: str
    """Its kind in words"""
    weights_sha256: str | None
    """Digest of its weights, equal for the same speculator in other runs; null where it has none"""


class HeldoutTime(Part):
    """When the held-out requests were logged."""

    first: float
    """Unix seconds"""
    last: float
    """Unix seconds"""


class RequestSampling(Part):
    """How most of the customer's requests were sampled."""

    temperature: float
    """Temperature"""
    top_p: float
    """Nucleus"""


class Token(Part):
    """A token of an example."""

    text: str
    """Its text; a character of several tokens is at the last one"""
    step: int
    """The step that delivered it; 0 is the prefill"""
    kind: Literal["first", "accepted", "own", "extra"]
    """The prefill's, an accepted draft, the target's after a wrong draft, or the target's after all
    drafts were right"""
    instead: str | None = None
    """The wrong draft"""


class Walk(Part):
    """A response, step by step, with one speculator."""

    steps: int
    """Number of engine steps"""
    acceptance_length: float
    """Delivered tokens over steps of this response"""
    shown: list[Token]
    """Its beginning and its end"""


class Example(Drafters[Walk]):
    """An example response."""

    model_config = DOCUMENTED

    place: str
    """Why this one was chosen"""
    tokens: int
    """Number of tokens that steps delivered"""
    left_out: int
    """Number of tokens between beginning and end that are not shown"""


class Samples(Part):
    """Example responses: customer text, only with report.samples."""

    k: int
    """Drafts per step"""
    head: int
    """Number of tokens shown of the beginning"""
    examples: list[Example]
    """Where custom gains least, a median amount, and most"""


class Privacy(Part):
    """Counts of personal data in the traffic (docs/traffic.md)."""

    mode: Literal["report", "surrogate"]
    """privacy.mode"""
    min_score: float
    """Least score of a finding that counts"""
    looked_for: list[str]
    """Kinds of personal data"""
    exchanges: int
    """Number of exchanges searched"""
    characters: int
    """Number of characters searched"""
    with_any: int
    """Number of exchanges with findings"""
    in_completion: int
    """Number of exchanges with findings in the response"""
    replaced: int
    """Number of exchanges with surrogates"""
    to_regenerate: int = 0
    """Number of exchanges whose response the target wrote again"""
    ids_dropped: int
    """Number of exchanges whose logged prompt ids are no longer valid"""
    without_text: int
    """Number of exchanges that have token ids only"""
    left_out: dict[str, int]
    """Reason -> number of exchanges"""
    found: dict[str, dict[str, int]]
    """Kind -> field -> occurrences"""


class Findings(Part):
    """All that an evaluation measured, before prices and verdict."""

    version: int
    """Version of the evaluation's code"""
    recipe: str
    """Name of the recipe"""
    run_dir: str
    """The run's directory"""
    target: str
    """target.model"""
    speculator: SpeculatorIdentity
    """The custom speculator"""
    heldout_time: HeldoutTime | None
    """Null where the log has no times"""
    k: Drafters[int]
    """Drafted tokens per step of base and of custom"""
    current_k: int | None = None
    """eval.current_k, what the endpoint drafts today"""
    main_concurrency: int
    """Concurrency at which K is chosen and custom must be faster than base"""
    by_batch_size: bool = False
    """Whether they were served with `choice.k_per_batch_size` (export.k_per_batch_size)"""
    choice: Choice
    """How k was chosen"""
    sampling: RequestSampling
    """The customer's sampling"""
    draft_sample_method: Literal["greedy", "probabilistic"]
    """speculator.draft_sample_method"""
    not_measured: dict[str, str]
    """Figure -> why this kind of speculator has none"""
    lost_ends: tuple[str, ...] = ()
    """What length limits cut from responses or keep from being sent, with the key to raise"""
    own_text: OnPolicy | None
    """Whether the held-out text is on-policy; null where capture kept no evidence"""
    replay: Replay | None
    """Acceptance by exact replay at custom's K, on whose ratio the verdict rests; null where not
    measured"""
    general: Replay | None
    """The same on general traffic; null without traffic.general"""
    interpolation: list[Mixture]
    """Mixtures of base and custom (eval.interpolation)"""
    slices: dict[str, list[Slice]]
    """Dimension -> its slices"""
    counted: Counted
    """Acceptance from vLLM's counters, all passes together, each speculator at its own K"""
    counted_same_k: Counted | None = None
    """The same, both at custom's K, over the timed blocks that measured base there; null where that
    is base's own"""
    served: dict[str, Served]
    """Engine mode -> speed"""
    rates: dict[str, dict[str, dict[str, RateRow]]]
    """Engine mode -> scenario -> requests per second; empty without eval.rates"""
    scenarios: dict[str, Scenario]
    """Scenario -> its requests"""
    verification: Verification
    """Lossless checks, replay against the engine, draft parity"""
    samples: Samples | None
    """Null without report.samples"""
    settings: dict[str, Any]
    """The recipe's `eval` section (docs/recipes.md)"""

    @property
    def acceptance_ratio(self) -> ClusteredEstimate:
        """custom / base at equal K: by exact replay, else by vLLM's counters.

        Where base's engine drafts another number than custom's and no other, each at its own.
        """
        return (self.replay or self.counted_same_k or self.counted).ratio

    @property
    def acceptance_k(self) -> Drafters[int]:
        """The numbers of drafts of `acceptance_ratio`."""
        alike = self.replay or self.counted_same_k
        return Drafters[int](base=self.k.custom, custom=self.k.custom) if alike else self.k

    @property
    def at_k(self) -> str:
        """The same in words."""
        k = self.acceptance_k
        return f"{'both ' if k.base == k.custom else ''}at K = {k_list(k)}"


class Results(Findings):
    """results.json: what was measured, its price, and the verdict."""

    cost: dict[str, dict[str, Cost]] | None
    """Engine mode -> concurrency -> money; null without eval.cost"""
    verdict: Verdict
    """The verdict"""
    kinds: Kinds | None = None
    """The choice of the speculator's kind; null where the recipe names one kind"""

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Loads a results.json, or a report.json as a `Report`; raises for another version."""
        value = read_json(path)
        version = value.get("version") if isinstance(value, dict) else None
        if version != VERSION:
            raise OutriderError(
                f"{path}: version {version}, but this Outrider reads {VERSION}; run "
                "evaluate-speculator again"
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise OutriderError(f"{path}: {place}: {first['msg']}") from None

    def write(self, path: Path) -> None:
        """Publishes the results; only the owner may read them if they hold customer text."""
        write_json(path, self.model_dump(mode="json"), private=self.samples is not None)


class Report(Results):
    """report.json: the results, and the run that they belong to."""

    traffic: dict[str, Any] | None
    """The ingest's counts (docs/traffic.md); null where the run has none"""
    privacy: Privacy | None
    """Counts of personal data; null with privacy.mode off"""
    on_policy: dict[str, Any] | None
    """The capture's on-policy check (docs/traffic.md); null where nothing was captured"""
    provenance: dict[str, Any]
    """Command line, versions, commit, hardware, digests of the recipe files; empty outside a run"""
