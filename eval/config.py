"""The recipe's `eval` and `report` sections: what is measured, how long, and what it takes to ship.

EvalConfig(k="auto", requests=6, repeats=3, gate=GateConfig(min_acceptance_ratio=1.0))
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

SHIP: Literal["ship"] = "ship"
DO_NOT_SHIP: Literal["do not ship"] = "do not ship"
UNDECIDED: Literal["undecided"] = "undecided"
EXIT_CODES = {SHIP: 0, DO_NOT_SHIP: 3, UNDECIDED: 4}
"""Verdict -> exit status of the commands; 1 is an error, 2 a wrong command line."""

STEP_ROUNDS = 5
"""Blocks of every number of drafts at every batch size, in which steps are timed."""

STEP_TOKENS = 96
"""Longest response of these blocks: steps do not get longer with responses as with batches."""

PERMUTATIONS = 2000
"""Of the token frequency test: enough for the gate's least p-value, 0.001."""

SEED = 0
"""Of prompt choice and permutations. Requests carry none: vLLM 0.32 cannot serve a seeded one on a
CPU."""

ANSWERS = ".jsonl"
"""End of an `eval.task` that is a file of known answers."""

PublicWorkload = Literal["speed_bench", "mt_bench", "gsm8k", "humaneval"]

LEAST_ARRIVALS = 6
"""Least requests of an open-loop block; fewer have no trend that could show saturation."""


Bound = NonNegativeInt | Annotated[str, Field(pattern=r"^(100|[0-9]{1,2})%$")]
LengthRange = tuple[Bound, Bound | None]


class ScenarioConfig(BaseModel):
    """Held-out requests whose logged prompt and response lengths lie in a range.

    Without a range, every length does.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    prompt_tokens: LengthRange | None = None
    """Least and most tokens of the prompt as the engine sees it, both included; null: no limit.
    Shares such as ["50%", "100%"] are quantiles of the held-out part: here the longer half."""

    response_tokens: LengthRange | None = None
    """The same of the logged response."""

    max_tokens: PositiveInt | None = None
    """Longest measured response in tokens; longer ones are cut, for every variant alike. Null:
    `eval.max_tokens`."""


class GateConfig(BaseModel):
    """What a custom speculator must show before it is exported."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    min_acceptance_ratio: PositiveFloat = 1.0
    """The interval of custom / base acceptance length (exact replay, held-out part) must lie above
    this."""

    min_speed_ratio: PositiveFloat = 1.0
    """The interval of custom / base tokens/s at the main concurrency must lie above this in every
    engine mode."""

    least_speed: ClassVar[float] = 0.97
    """The intervals of custom / base at the other concurrencies, and of custom / none at all, must
    lie above this: custom must be shown not to be slower by more than 3 %."""

    max_general_loss: float = Field(0.05, ge=0, lt=1)
    """Largest loss of acceptance length on general traffic, as a share of base's: the interval of
    custom / base must lie above 1 minus this. Checked where the recipe has `traffic.general`."""

    near_tie_nats: ClassVar[float] = 0.125
    """A first difference is a near tie when the target's log-probabilities of the two tokens are at
    most this far apart (nats). bf16 engines that batch differently disagree about such tokens
    without any speculation: their logits between 16 and 32 have steps of 0.125. Others are
    unexplained: the verdict is `undecided` if the engine shows none without speculation."""

    max_tail_excess: ClassVar[float] = 0.01
    """Largest excess over no speculation of the share of sampled tokens whose probability under the
    target is below 1e-4. A broken rejection sampler shows here first (0.0015 is usual, a broken one
    gave 0.089)."""

    min_same_text_p: ClassVar[float] = 0.001
    """Least p-value of the permutation test that sampled responses have the same token frequencies
    with and without speculation. A lossless speculator falls below it once in 1 / this
    evaluations."""

    max_task_loss: float = Field(0.1, gt=0, lt=1)
    """Equivalence margin of the task accuracy: the 90 % interval of custom minus none must lie
    within minus and plus this (two one-sided tests at 5 %). A narrower margin needs more responses
    (see `verification_requests`): where every response is solved alike 31 for 0.05; where one in
    four changes sides by chance 68 for 0.1."""

    max_replay_difference: ClassVar[float] = 0.02
    """Largest relative difference between the steps that exact replay predicts and those that the
    engine counted for the same responses. Beyond it, trainer and engine do not run the same
    speculator."""

    replay_margin: ClassVar[float] = 0.01
    """The engine repeats some greedy responses in other batches. Where the difference between its
    own steps plus this is larger than `max_replay_difference`, it is the limit, up to three times
    that. Beyond it the check is undecided."""


class CostConfig(BaseModel):
    """Prices for the report's cost section, per endpoint as measured, in any currency."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    gpu_hour_price: PositiveFloat
    """Price of one GPU for one hour."""

    tokens_per_s: PositiveFloat | None = None
    """Output tokens/s that the customer's endpoints must deliver together, for GPU-hours per
    month."""


class ReportConfig(BaseModel):
    """What people are shown: in reports, on the terminal, in logs and in errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    samples: bool = False
    """Whether customer text may be shown: three held-out responses step by step in the report, and
    messages of unexpected errors that may quote a row. Without it no log line, error or report
    holds any; with it only the owner may read the report, and `privacy.retention: delete_all` is
    refused."""


class EvalConfig(BaseModel):
    """The evaluation of base and custom speculator on held-out traffic."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    k: PositiveInt | Literal["auto"] = "auto"
    """Drafted tokens per step. "auto" takes for base and for custom the smallest k over which no
    other is shown to give more tokens/s at the main concurrency, in every engine mode, from the
    validation part and timed steps of the engine (see eval/choose_k.py), at most the trained depth.
    A number is for base and custom alike."""

    current_k: PositiveInt | None = None
    """Drafted tokens per step that the endpoint runs today. Base is then also measured at this
    number, and custom must beat it too. null: base's best K is the only reference."""

    engine_modes: list[Literal["eager", "compiled"]] = Field(["eager", "compiled"], min_length=1)
    """Engine modes in which tokens/s are measured and the verification pass runs. On a small target
    they differ: compiled, it leaves less to gain."""

    side_by_side: bool = True
    """Whether the server without speculation and the one for base and custom run at the same time,
    so that short blocks of all three interleave. false where the machine holds one at a time, as
    R1's does: the servers then alternate, once per repeat."""

    concurrency: list[PositiveInt] = Field([1, 4, 8], min_length=1)
    """Requests in flight at once, one measurement each. At the main one, K is chosen and custom
    must be faster than base: the lowest at which base keeps up with the logged tokens per second,
    the first one where the log has no times. At the others custom must not be slower than base, and
    nowhere slower than no speculation, by more than 3 %."""

    requests: PositiveInt = 4
    """Held-out prompts per block; at high concurrency at least two rounds of it. At concurrency 1
    base and custom alternate by request, and every pair narrows their interval; otherwise, on a
    machine whose speed changes, more short blocks narrow it further than longer ones do."""

    measure: Literal["until_decided", "full"] = "full"
    """When timed blocks end. `full` measures `repeats` repeats of every engine mode.
    `until_decided` looks after 2, 4, 8, ... and after all `repeats`, and stops when all demands on
    speed are decided, or custom is shown not to be faster than base. Its intervals are wider at
    early looks, so that they are valid at whichever look the measurement stops (see
    eval/stats/sequential.py)."""

    repeats: int = Field(4, ge=2)
    """Blocks per concurrency and variant, interleaved none / base / custom with rotated order; the
    maximum with `measure: until_decided`. Speeds are compared within a repeat. Where base and
    custom run in two engines, because their kinds or shapes differ, every repeat starts these
    again, and fewer than 3 repeats decide nothing."""

    max_tokens: PositiveInt = 256
    """Longest measured response in tokens; longer ones are cut, for every variant alike."""

    rates: list[PositiveFloat] = []
    """Open loop: requests per second, one measurement each and for each of `eval.scenarios`, none,
    base and custom in turn. Requests are sent at the times of the customer's log, their gaps scaled
    to the rate, whether or not earlier ones are answered. Empty: closed loop only."""

    rate_seconds: PositiveFloat = 20.0
    """Seconds over which the requests of one rate are sent: rate x rate_seconds of them. The same
    time at every rate, because a queue needs time to grow before saturation shows; a saturated
    server runs until all are answered. Intervals use the closed loop's noise, a lower bound."""

    scenarios: dict[Annotated[str, Field(pattern="^[a-z0-9_]+$")], ScenarioConfig] = {}
    """Usage scenarios by name: each selects held-out requests by the lengths of their logged prompt
    and response, and is measured at every one of `eval.rates` (which must then not be empty).
    Empty: the rates are measured on the whole held-out part."""

    verification_requests: PositiveInt = 24
    """Held-out prompts of the verification pass (lossless check, replay against engine, task
    accuracy), sent to every variant greedily and at the customer's sampling."""

    verification_max_tokens: PositiveInt = 400
    """Longest response of the verification pass in tokens. It must be long enough to finish the
    task, or task accuracy means nothing."""

    replay_sequences: PositiveInt | None = None
    """Most held-out sequences that exact replay reads, drawn by seed; null: all of them."""

    task: str | None = None
    r"""Check whether a response solved its task: `module:function` of (prompt_text,
    completion_text) -> bool | None; None leaves the response out (a prompt without a known answer).
    Both texts hold special tokens as text, the completion without the end-of-sequence token. Or the
    path of a .jsonl file with known answers, lines of `question` and `answer` as GSM8K has them: a
    response whose prompt holds a question is solved where its final answer (the last \boxed{}, else
    what follows ####, else the last number) is the known one. null: no task accuracy."""

    general: dict[PublicWorkload, str | None] = {}
    """Public workloads on which acceptance by K is reported next to the customer's traffic: name ->
    a local file in the hub's layout (for `speed_bench` the folder that NVIDIA's prepare.py writes),
    or null for the hub. The target answers 80 prompts of each. Needs captured states."""

    general_prompts: ClassVar[int] = 80
    """Most prompts of each of these workloads."""

    cost: CostConfig | None = None
    """Prices; null: no cost section in the report."""

    gate: GateConfig = GateConfig()
    """What it takes to ship."""

    @field_validator("concurrency", "engine_modes", "rates")
    @classmethod
    def _no_value_twice(cls, value: list[Any]) -> list[Any]:
        if len(set(value)) != len(value):
            raise ValueError(f"names a value twice: {value}")
        return value

    @model_validator(mode="after")
    def _rates_fit(self) -> "EvalConfig":
        if self.scenarios and not self.rates:
            raise ValueError(
                "eval.scenarios are measured at eval.rates, which is empty; name rates, such as "
                "eval.rates=[1,2,4,8,16]"
            )
        if self.rates and (sent := self.rate_requests(min(self.rates))) < LEAST_ARRIVALS:
            raise ValueError(
                f"eval.rates has {min(self.rates):g}, at which eval.rate_seconds = "
                f"{self.rate_seconds:g} sends {sent} requests; at least {LEAST_ARRIVALS} are "
                f"needed: raise eval.rate_seconds to {LEAST_ARRIVALS / min(self.rates):g}"
            )
        return self

    @property
    def main(self) -> int:
        """The first of `concurrency`, the main one where the logged load is not known."""
        return self.concurrency[0]

    @property
    def replay_dtype(self) -> Literal["float32", "bfloat16"]:
        """Arithmetic of exact replay: bfloat16 halves time and memory on a GPU, not on a CPU."""
        import torch

        return "bfloat16" if torch.cuda.is_available() else "float32"

    def block_requests(self, concurrency: int) -> int:
        """Prompts of one block at this concurrency."""
        return max(self.requests, 2 * concurrency)

    def rate_requests(self, rate: float) -> int:
        """Number of requests sent at this rate."""
        return round(rate * self.rate_seconds)
