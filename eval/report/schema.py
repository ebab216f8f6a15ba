"""What report.json holds: one model for every object in it. docs/report.schema.json and docs/report.md are written from these models.

    Report.model_validate(read_json("runs/resume_screening/report.json"))

A key that no model names fails the tests, so whoever adds a figure says here, or in report_figures.py, report_rates.py or report_verification.py, what it
is, and runs `python -m outrider.eval.report.schema_reference`. What the data folder counts (`traffic`, `on_policy`) and the settings have their
own pages and are not described again.
"""

from typing import Any, Literal

from outrider.eval.report.schema_figures import (
    Cost,
    Counted,
    Mixture,
    Part,
    PredictedRow,
    Replay,
    Served,
    Slice,
)
from outrider.eval.report.schema_rates import RateRow, Scenario
from outrider.eval.report.schema_verification import Verification


class Check(Part):
    """A condition of the verdict."""

    name: str
    """What was looked at"""
    passed: bool
    """Whether it held"""
    seen: str
    """What was seen, in words"""
    demand: str
    """What was demanded, in words"""


class Verdict(Part):
    """The judgement."""

    verdict: Literal["ship", "do not ship"]
    """`ship` where every check passed"""
    reason: str
    """The first check that failed, or what was gained"""
    exit_code: int
    """The command's exit status: 0 or 2"""
    checks: list[Check]
    """Every condition"""
    unchecked: dict[str, str]
    """What could not be checked, and why; empty for an MTP layer"""


class Speculator(Part):
    """The custom speculator's identity."""

    kind: str
    """What speculates"""
    in_words: str
    """The same, for people"""
    weights_sha256: str | None
    """Digest of its weights; the same speculator in other runs has the same. Null where it has none"""


class OwnText(Part):
    """Are the held-out sequences the target's own text? (docs/traffic.md)"""

    own: bool | None
    """Null: too little text to tell"""
    cause: str
    """The likely cause where they are not"""
    text: str
    """In words"""
    sequences: int
    """Looked at"""


class HeldoutTime(Part):
    """When the held-out requests were logged."""

    first: float
    """Unix seconds"""
    last: float
    """Unix seconds"""


class Sampling(Part):
    """How most of the customer's requests were sampled."""

    temperature: float
    """Temperature"""
    top_p: float
    """Nucleus"""


class PromptCost(Part):
    """Milliseconds for each of a prompt's tokens."""

    none: float
    """Without speculation"""
    drafting: float
    """Where a drafter reads it too"""


class Choice(Part):
    """How k was chosen, on the validation part."""

    k: int
    """Drafted tokens a step"""
    k_per_batch_size: list[tuple[int, int, int]] | None
    """[first batch size, last, best k]; null where the recipe sets k"""
    acceptance_length: list[float] | None
    """Custom's on the validation part, for k = 1..depth; null for a speculator that Outrider does not compute"""
    step_ms: dict[str, list[float]] | None
    """Batch size -> milliseconds a step for k = 0..depth, 0 the target's own; null where nothing was timed"""
    tokens_per_s: dict[str, list[float]] | None = None
    """Batch size -> tokens/s that these promise, for k = 1..depth"""
    prompt_token_ms: PromptCost | None = None
    """What a prompt adds to the step in which it is computed; null where nothing was timed"""
    source: str
    """Where the times come from"""
    requested: int | Literal["auto"]
    """The recipe's eval.k"""
    sequences: int
    """Validation responses replayed"""


class Token(Part):
    """A token of an example."""

    text: str
    """Its text; a character of several tokens stands at the last"""
    step: int
    """Which step delivered it; 0: the prefill"""
    kind: Literal["first", "accepted", "own", "extra"]
    """The prefill's, an accepted draft, the target's after a wrong draft, the target's after all drafts were right"""
    instead: str | None = None
    """The wrong draft"""


class Walk(Part):
    """A response as one speculator takes it."""

    steps: int
    """Engine steps"""
    acceptance_length: float
    """Of this response, delivered tokens over steps"""
    shown: list[Token]
    """Its beginning and its end"""


class Example(Part):
    """An example response."""

    place: str
    """Why this one"""
    tokens: int
    """Delivered by steps"""
    left_out: int
    """Tokens not shown between beginning and end"""
    base: Walk
    """With the target's own speculator"""
    custom: Walk
    """With the trained one"""


class Samples(Part):
    """Example responses: customer text, only with report.samples."""

    k: int
    """Drafts a step"""
    head: int
    """Tokens shown of the beginning"""
    examples: list[Example]
    """Where custom gains least, as usual, most"""


class Privacy(Part):
    """Counts of personal data in the traffic (docs/traffic.md)."""

    mode: Literal["report", "surrogate"]
    """privacy.mode"""
    min_score: float
    """From which score a finding counts"""
    looked_for: list[str]
    """Kinds"""
    exchanges: int
    """Looked at"""
    characters: int
    """Looked at"""
    with_any: int
    """Exchanges that hold some"""
    in_completion: int
    """Whose response does"""
    replaced: int
    """In which a surrogate was put"""
    to_regenerate: int = 0
    """Whose response the target gave anew"""
    ids_dropped: int
    """Whose logged prompt ids no longer hold"""
    without_text: int
    """Of token ids alone"""
    left_out: dict[str, int]
    """By reason"""
    found: dict[str, dict[str, int]]
    """Kind -> field -> occurrences"""


class Report(Part):
    """report.json."""

    version: int
    """Of the evaluation's code"""
    recipe: str
    """Name of the recipe"""
    run_dir: str
    """The run's directory"""
    target: str
    """target.model"""
    speculator: Speculator
    """Which speculator is custom"""
    heldout_time: HeldoutTime | None
    """Null where the log has no times"""
    k: int
    """Drafted tokens a step, for base and custom alike"""
    choice: Choice
    """How k was chosen"""
    sampling: Sampling
    """The customer's"""
    draft_sample_method: Literal["greedy", "probabilistic"]
    """speculator.draft_sample_method"""
    not_measured: dict[str, str]
    """What this kind of speculator has no figure for, and why"""
    own_text: OwnText | None
    """Null where capture kept no evidence"""
    replay: Replay | None
    """Acceptance by exact replay; the verdict rests on its ratio. Null for a speculator that Outrider does not compute"""
    general: Replay | None
    """The same on general traffic; null without traffic.general"""
    interpolation: list[Mixture]
    """Mixtures of base and custom (eval.interpolation)"""
    slices: dict[str, list[Slice]]
    """Dimension -> its slices"""
    counted: Counted
    """Acceptance from vLLM's counters, all passes together"""
    served: dict[str, Served]
    """Engine mode -> speed"""
    rates: dict[str, dict[str, dict[str, RateRow]]]
    """Engine mode -> scenario -> requests a second; empty without eval.rates"""
    scenarios: dict[str, Scenario]
    """Which requests the scenarios are made of"""
    verification: Verification
    """Is it lossless, does replay agree, are the drafts the same?"""
    predicted: dict[str, dict[str, PredictedRow]]
    """Engine mode -> concurrency -> speed predicted and served; empty without exact replay"""
    samples: Samples | None
    """Null without report.samples"""
    cost: dict[str, dict[str, Cost]] | None
    """Engine mode -> concurrency -> money; null without eval.cost"""
    verdict: Verdict
    """The judgement"""
    settings: dict[str, Any]
    """The recipe's `eval` section, whole (docs/recipes.md)"""
    traffic: dict[str, Any] | None
    """The ingest's counts (docs/traffic.md); null where the run has none"""
    privacy: Privacy | None
    """Counts of personal data; null with privacy.mode off"""
    on_policy: dict[str, Any] | None
    """Is it the target's own text? (docs/traffic.md); null where nothing was captured"""
    provenance: dict[str, Any]
    """Command line, versions, commit, hardware, the recipe files' digests; empty outside a run"""


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Report.model_json_schema()}
