"""Models of the choice of K, from step times and replay."""

from outrider.eval.results.parts import Drafter, Drafters, Part


class KGain(Part):
    """Predicted gain in tokens/s of one k over another."""

    k: int
    """The one"""
    over: int
    """The other"""
    value: float
    """Ratio of tokens/s - 1"""
    low: float
    """Low end of its interval over resampled rounds; 95 %"""
    high: float
    """High end of the interval"""


class KReason(Part):
    """Why a speculator drafts this number of tokens."""

    k: int
    """The chosen k"""
    smaller: KGain | None
    """Its gain over the fastest smaller one; null for the smallest"""
    larger: KGain | None
    """What the fastest larger one gains over it; null for the largest"""
    undecided: tuple[int, ...] = ()
    """Other k that the timed steps could not tell from it: smaller ones over which none is shown to
    gain 1 %, larger ones that are not shown not to. Empty: the choice is decided"""


class Choice(Part):
    """How the k of base and of custom were chosen, on the validation part."""

    k: Drafters[int]
    """Drafted tokens per step"""
    reason: Drafters[KReason] | None = None
    """Why; null where k was not chosen"""
    k_per_batch_size: Drafters[list[tuple[int, int, int]] | None] | None = None
    """[first batch size, last, best k]; null where the recipe sets k"""
    acceptance_length: Drafters[list[float] | None] | None = None
    """On the validation part, for k = 1..depth; null where exact replay is not measured"""
    step_ms: dict[Drafter, dict[str, list[float]]] | None = None
    """Whose engine -> batch size -> milliseconds per step for k = 0..depth; k = 0 is the target
    alone. Of custom, and of base where it has an engine of its own. Null where nothing was timed"""
    rounds: dict[str, int] | None = None
    """Batch size -> number of timed rounds; null where nothing was timed"""
    source: str
    """Where the times come from"""
    sequences: int
    """Number of validation responses replayed"""
