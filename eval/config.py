"""The recipe's `eval` and `report` sections: measurements, their length, and the gate.

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
"""Timed blocks per number of drafts and batch size when steps are timed."""

STEP_TOKENS = 96
"""Longest response in these blocks: larger batches lengthen steps, longer responses do not."""

PERMUTATIONS = 2000
"""Permutations of the token frequency test: enough for the gate's least p-value, 0.001."""

SEED = 0
"""Seed of prompt choice and permutations. Requests carry no seed: vLLM 0.32 cannot serve seeded
requests on a CPU."""

ANSWERS = ".jsonl"
"""Suffix of an `eval.task` that is a file of known answers."""

PublicWorkload = Literal["speed_bench", "mt_bench", "gsm8k", "humaneval"]

LEAST_ARRIVALS = 6
"""Least number of requests in an open-loop block; fewer show no trend, so no saturation."""


Bound = NonNegativeInt | Annotated[str, Field(pattern=r"^(100|[0-9]{1,2})%$")]
LengthRange = tuple[Bound, Bound | None]


class ScenarioConfig(BaseModel):
    """Held-out requests whose logged prompt and response lengths lie in a range.

    Without a range, every length is included.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    prompt_tokens: LengthRange | None = None
    """Least and most tokens of the prompt as the engine sees it, both included; null: no limit.
    Percentages are quantiles of the held-out part: ["50%", "100%"] is the longer half."""

    response_tokens: LengthRange | None = None
    """The same for the logged response."""

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
    """The intervals of custom / base at the other concurrencies, and of custom / none at every
    concurrency, must lie above this: custom must be shown not to be slower by more than 3 %."""

    max_general_loss: float = Field(0.05, ge=0, lt=1)
    """Largest loss of acceptance length on general traffic, as a share of base's: the interval of
    custom / base must lie above 1 minus this. Checked if the recipe has `traffic.general`."""

    near_tie_nats: ClassVar[float] = 0.125
    """A first difference is a near tie if the target's log-probabilities of the two tokens differ
    by at most this (nats). bf16 engines that batch differently disagree about such tokens even
    without speculation: logits between 16 and 32 have steps of 0.125. Other differences are
    unexplained: the verdict is `undecided` if the engine has none of them without speculation."""

    max_tail_excess: ClassVar[float] = 0.01
    """Largest allowed increase over no speculation in the share of sampled tokens whose probability
    under the target is below 1e-4. A broken rejection sampler shows here first (0.0015 is usual, a
    broken one gave 0.089)."""

    min_same_text_p: ClassVar[float] = 0.001
    """Least p-value of the permutation test that sampled responses have the same token frequencies
    with and without speculation. A lossless speculator falls below it in this share of
    evaluations."""

    max_task_loss: float = Field(0.1, gt=0, lt=1)
    """Equivalence margin of the task accuracy: the 90 % interval of custom minus none must lie
    between minus and plus this (two one-sided tests at 5 %). A narrower margin needs more responses
    (see `verification_requests`): 31 for 0.05 if every response is solved alike; 68 for 0.1 if one
    in four changes by chance."""

    max_replay_difference: ClassVar[float] = 0.02
    """Largest relative difference between the steps that exact replay predicts and those that the
    engine counted for the same responses. Beyond it, trainer and engine do not run the same
    speculator."""

    replay_margin: ClassVar[float] = 0.01
    """The engine repeats some greedy responses in other batches. If the relative difference of its
    own steps plus this exceeds `max_replay_difference`, that sum is the limit, up to three times
    `max_replay_difference`. Up to the sum the check is then undecided."""


class CostConfig(BaseModel):
    """Prices for the report's cost section, per endpoint as measured, in any currency."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    gpu_hour_price: PositiveFloat
    """Price of one GPU for one hour."""

    tokens_per_s: PositiveFloat | None = None
    """Output tokens/s that the customer's endpoints must deliver together, for GPU-hours per
    month."""


class ReportConfig(BaseModel):
    """Content of reports, terminal output, logs and errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    samples: bool = False
    """Whether customer text may be shown: three held-out responses step by step in the report, and
    messages of unexpected errors that may quote a row. Without it no log line, error or report
    contains any; with it only the owner may read the report, and `privacy.retention: delete_all` is
    refused."""


class EvalConfig(BaseModel):
    """The evaluation of base and custom speculator on held-out traffic."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    k: PositiveInt | Literal["auto"] = "auto"
    """Drafted tokens per step. "auto" chooses it for base and for custom in every engine mode: the
    smallest k, at most the trained depth, over which no other is shown to give more tokens/s at the
    main concurrency, from the validation part and timed steps of the engine (see eval/choose_k.py).
    A number is for both."""

    current_k: PositiveInt | None = None
    """Drafted tokens per step of the endpoint today. Base is then also measured at this number, and
    custom must be faster than that too. null: base's best K is the only reference."""

    engine_modes: list[Literal["eager", "compiled"]] = Field(["eager", "compiled"], min_length=1)
    """Engine modes in which tokens/s are measured and the verification pass runs. They differ on a
    small target: its compiled engine leaves less to gain."""

    side_by_side: bool = True
    """Whether the server without speculation and the one for base and custom run at the same time,
    so that short blocks of all three interleave. false if the machine holds only one at a time, as
    for R1: the servers then alternate, once per repeat."""

    concurrency: list[PositiveInt] = Field([1, 4, 8], min_length=1)
    """Numbers of concurrent requests, one measurement each. K is chosen at the main one, where
    custom must be faster than base: the lowest at which base keeps up with the logged tokens per
    second, or the first if the log has no times. At the others custom must not be slower than base
    by more than 3 %, nor at any slower than no speculation by more than 3 %."""

    requests: PositiveInt = 4
    """Held-out prompts per block, at least twice the concurrency. At concurrency 1 base and custom
    alternate by request, and every pair narrows their interval; at others, on a machine whose speed
    changes, more short blocks narrow it further than longer blocks."""

    measure: Literal["until_decided", "full"] = "full"
    """When measuring ends. `full` measures `repeats` repeats of every engine mode. `until_decided`
    evaluates the intervals after 2, 4, 8, ... and all `repeats`, and stops when all speed checks
    are decided, or custom is shown not to be faster than base. Its early intervals are wider, so
    that they are valid whenever the measurement stops (see eval/stats/sequential.py)."""

    repeats: int = Field(4, ge=2)
    """Blocks per concurrency and variant, interleaved none / base / custom with rotated order; the
    maximum with `measure: until_decided`. Speeds are compared within a repeat. If base and custom
    run in two engines, because their kinds or shapes differ, every repeat restarts both, and fewer
    than 3 repeats decide nothing."""

    max_tokens: PositiveInt = 256
    """Longest measured response in tokens; longer ones are cut, for every variant alike."""

    rates: list[PositiveFloat] = []
    """Open loop: requests per second. Each rate is measured for each of `eval.scenarios`, with
    none, base and custom in turn. Requests are sent at the times in the customer's log, with gaps
    scaled to the rate, whether or not earlier ones are answered. Empty: closed loop only."""

    rate_seconds: PositiveFloat = 20.0
    """Seconds over which the requests of one rate are sent: rate x rate_seconds requests. It is the
    same at every rate, because a queue needs time to grow before saturation shows; a saturated
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
    """Maximum number of held-out sequences for exact replay, drawn by seed; null: all of them."""

    task: str | None = None
    r"""Checks whether a response solved its task: `module:function` of (prompt_text,
    completion_text) -> bool | None; None leaves the response out (a prompt without a known answer).
    Both texts contain special tokens, the completion without the end-of-sequence token. Or the path
    of a .jsonl file of known answers in GSM8K's format, lines with `question` and `answer`: a
    response whose prompt contains a question is solved if its final answer (the last \boxed{}, else
    the text after ####, else the last number) is the known one. null: no task accuracy."""

    general: dict[PublicWorkload, str | None] = {}
    """Public workloads on which acceptance by K is reported next to the customer's traffic: name ->
    a local file in the hub's layout (for `speed_bench` the folder that NVIDIA's prepare.py writes),
    or null for the hub. The target answers 80 prompts of each. Needs captured states."""

    general_prompts: ClassVar[int] = 80
    """Maximum number of prompts per workload."""

    cost: CostConfig | None = None
    """Prices; null: no cost section in the report."""

    gate: GateConfig = GateConfig()
    """Conditions of the verdict `ship`."""

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
        """The first of `concurrency`, the main one if the load is unknown."""
        return self.concurrency[0]

    @property
    def replay_dtype(self) -> Literal["float32", "bfloat16"]:
        """Dtype of exact replay; bfloat16 halves time and memory on GPUs only."""
        import torch

        return "bfloat16" if torch.cuda.is_available() else "float32"

    def block_requests(self, concurrency: int) -> int:
        """Number of prompts in one block at this concurrency."""
        return max(self.requests, 2 * concurrency)

    def rate_requests(self, rate: float) -> int:
        """Number of requests sent at this rate."""
        return round(rate * self.rate_seconds)
