"""What report.json holds of the verification pass: one model for every object (report_schema.py has the whole)."""

from outrider.eval.report.schema_figures import Drafters, Part, Variants


class DepthParity(Part):
    """Drafts of trainer and engine at one position."""

    n: int
    """Drafts compared"""
    agreement: float
    """Share of equal tokens"""
    near_ties: float
    """Share of those that differ within speculator.parity.near_tie_nats"""
    difference: float
    """Mean absolute difference of log-probabilities, nats"""
    gap: float | None
    """How far apart the two tokens are where they differ, nats"""


class Parity(Part):
    """Drafts of trainer and engine."""

    steps: int
    """Steps compared"""
    agreement: float
    """Share of equal tokens over all positions"""
    near_ties: float
    """Share of those that differ within speculator.parity.near_tie_nats"""
    difference: float
    """Mean absolute difference of log-probabilities, nats"""
    per_depth: list[DepthParity]
    """By position"""


class Difference(Part):
    """Where a greedy response first differs."""

    response: int
    """Which of the prompts"""
    token: int
    """Place in the response"""
    gap_nats: float | None
    """How far apart the two tokens are under the target; null where one response ended"""
    near_tie: bool
    """Within gate.near_tie_nats"""


class Greedy(Part):
    """Greedy responses of a speculator against those without one."""

    responses: int
    """Compared"""
    equal: int
    """Token for token"""
    equal_ci95: tuple[float, float]
    """Wilson's interval of the share"""
    near_ties: int
    """Differ from a near tie on"""
    unexplained: int
    """Differ without one"""
    differences: list[Difference]
    """Each first difference"""


class SampledText(Part):
    """Sampled tokens under the target."""

    responses: int
    """Responses"""
    tokens: int
    """Tokens"""
    mean_logprob: float
    """Nats"""
    mean_logprob_standard_error: float
    """Over responses"""
    tail_share: float
    """Share below probability 1e-4"""
    tail_share_ci95: tuple[float, float]
    """Wilson's interval"""


class SameText(Part):
    """Permutation test of token frequencies against no speculation."""

    prompts: int
    """Prompts"""
    tokens: int
    """Tokens of both sides"""
    bins: int
    """Tokens told apart, the rare ones together"""
    distance: float
    """Chi-square"""
    p_value: float
    """Share of relabellings at least as far apart"""


class TaskAccuracy(Part):
    """Tasks of one variant."""

    solved: int
    """Solved"""
    responses: int
    """Asked"""
    accuracy: float
    """Share"""
    ci95: tuple[float, float]
    """Wilson's interval"""


class Equivalence(Part):
    """Custom minus none, paired by prompt, and the two one-sided tests that it lies within the margin."""

    value: float
    """Difference of the shares of solved tasks"""
    low: float
    """Low end of its interval"""
    high: float
    """High end"""
    confidence: float
    """Of the interval: 0.9, each test at 5 %"""
    margin: float
    """gate.max_task_loss"""
    p_value: float
    """The larger of the two tests'"""
    equivalent: bool
    """The interval lies within the margin on either side"""
    variance: float
    """Spread of one response's difference"""
    responses_needed: int
    """So many would suffice if there were no difference"""
    observations: int
    """Responses"""
    clusters: int
    """Sessions they belong to"""


class Task(Part):
    """Tasks solved, greedy and sampled responses together."""

    none: TaskAccuracy
    """Without speculation"""
    base: TaskAccuracy
    """With the target's own speculator"""
    custom: TaskAccuracy
    """With the trained one"""
    custom_minus_none: Equivalence
    """Is it the same?"""


class BothForms(Part):
    """The same figure from replay and from the engine."""

    replay: float | list[float]
    """Predicted"""
    engine: float | list[float]
    """Counted"""


class StepsCompared(Part):
    """Steps for the same responses, predicted and counted."""

    predicted_steps: float
    """By exact replay"""
    counted_drafts: float
    """By the engine"""
    relative_difference: float
    """predicted / counted - 1"""
    delivered_tokens: float
    """Without each response's first"""
    acceptance_length_delivered: BothForms
    """Delivered tokens over steps"""
    acceptance_length_counters: float
    """1 + accepted / drafts"""
    cumulative: BothForms
    """By position"""


class Regimes(Part):
    """Greedy and as the customer samples."""

    greedy: Drafters[StepsCompared]
    """Temperature 0"""
    sampled: Drafters[StepsCompared]
    """The customer's sampling"""


class ReplayAgainstEngine(Part):
    """Does exact replay predict the engine's steps?"""

    base: float
    """Steps predicted / counted - 1, both regimes together"""
    custom: float
    """Likewise"""
    details: Regimes
    """By regime"""


class Verification(Part):
    """The verification pass: the same prompts through all variants."""

    requests: int
    """Prompts"""
    parity: Drafters[Parity] | dict[str, Parity]
    """Drafts of trainer and engine; empty for a speculator that Outrider does not compute"""
    greedy: Drafters[Greedy]
    """Greedy responses against those without speculation"""
    sampled_text: Variants[SampledText]
    """Sampled tokens under the target"""
    same_text: Drafters[SameText]
    """Token frequencies against no speculation"""
    replay_vs_engine: ReplayAgainstEngine | None
    """Steps predicted and counted; null for a speculator that Outrider does not compute"""
    task: Task | None
    """Null without eval.task"""
