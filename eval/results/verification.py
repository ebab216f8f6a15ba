"""Models of the verification pass: lossless checks, replay against the engine."""

from outrider.eval.results.parts import DOCUMENTED, Drafters, Part, Variants


class Greedy(Part):
    """Greedy responses against those without speculation."""

    responses: int
    """Number of responses compared"""
    near_ties: list[int]
    """Indices of responses whose first difference lies within gate.near_tie_nats"""
    unexplained: list[int]
    """Indices of responses whose first difference does not, or is an end"""

    @property
    def equal(self) -> int:
        """Number of responses equal token for token."""
        return self.responses - len(self.near_ties) - len(self.unexplained)


class Excess(Part):
    """Responses that differ, near ties included, above the control's; paired by prompt."""

    value: float
    """Share with speculation minus share of the control, over the control's prompts"""
    p_value: float
    """Probability of so many more differences than the control's, or of so many more unexplained
    ones, if speculation changed nothing"""


class SameText(Part):
    """Permutation test of token frequencies against no speculation."""

    prompts: int
    """Number of prompts"""
    tokens: int
    """Number of tokens, both sides together"""
    p_value: float
    """Share of relabelings at least as far apart, by the chi-square distance"""


class Equivalence(Part):
    """Custom minus none, paired by prompt, for two one-sided tests (TOST) against a margin."""

    value: float
    """Difference of the shares of solved tasks"""
    low: float
    """Low end of its 90 % interval, each test at 5 %"""
    high: float
    """High end of the interval"""
    variance: float
    """Variance of one response's difference"""
    observations: int
    """Number of responses"""
    clusters: int
    """Number of sessions"""

    def within(self, margin: float) -> bool:
        """Whether both tests reject a difference as large as the margin."""
        return self.low > -margin and self.high < margin


class Task(Variants[int]):
    """Number of tasks solved, greedy and sampled responses together."""

    model_config = DOCUMENTED

    custom_minus_none: Equivalence
    """Whether custom solves as many tasks as no speculation"""
    errors: int = 0
    """Number of responses on which the check raised; their prompts are left out"""
    first_error: str | None = None
    """The first of these errors"""


class ReplayAgainstEngine(Drafters[float]):
    """Predicted / counted steps - 1, of the same responses: greedy and at the customer's sampling.

    Steps are predicted by exact replay, and counted by the engine.
    """

    model_config = DOCUMENTED

    control: float
    """|steps / steps - 1| of custom against itself in other batches, over equal greedy responses"""


class EngineFindings(Part):
    """What the verification pass found in the outputs of one engine mode."""

    greedy: Drafters[Greedy]
    """Greedy responses against those without speculation"""
    control: Greedy
    """The first greedy responses without speculation against the same prompts in other batches"""
    excess: Excess
    """What custom adds to the control's differences"""
    greedy_acceptance_length: Drafters[float | None]
    """1 + accepted / drafts of the greedy responses by vLLM's counters, which an exported bundle
    must reach; null without drafts"""
    tail_share: Variants[float]
    """Share of sampled tokens whose probability under the target is below 1e-4"""
    same_text: SameText
    """Token frequencies of custom against no speculation"""
    replay_vs_engine: ReplayAgainstEngine | None
    """Predicted and counted steps; null where exact replay is not measured"""


class Verification(Part):
    """The verification pass: the same prompts through all variants, in every engine mode."""

    modes: dict[str, EngineFindings]
    """Engine mode -> its findings"""
    task: Task | None
    """Over the responses of all modes; null without eval.task"""
