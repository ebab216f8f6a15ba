"""The recipe's `eval` and `report` sections: measurements, their length, and the gate.

EvalConfig(k="auto", requests=6, repeats=3, gate=GateConfig(min_acceptance_ratio=1.0))
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from outrider.speculators.kinds import kind_named, lookup_names
from outrider.speculators.kinds.protocol import MOST_LOOKED_UP

SHIP: Literal["ship"] = "ship"
DO_NOT_SHIP: Literal["do not ship"] = "do not ship"
UNDECIDED: Literal["undecided"] = "undecided"
EXIT_CODES = {SHIP: 0, DO_NOT_SHIP: 3, UNDECIDED: 4}
"""Verdict -> exit status of the commands; 1 is an error, 2 a usage error."""

STEP_ROUNDS = 5
"""Blocks per batch size and number of drafts when steps are timed."""

STEP_TOKENS = 96
"""Maximum number of tokens by which a logged response is continued when steps are timed."""


def step_requests(concurrency: int) -> int:
    """Requests of a block of timed steps.

    At least twice the batch size: until the last requests end, the batch is full.
    """
    return max(4, 2 * concurrency)


MIN_GAIN = 0.01
"""Minimum relative gain in tokens/s from a larger k; a smaller gain is not worth the longer steps
at higher load."""

LOOKUP_NUMBERS = (2, 4, 8, MOST_LOOKED_UP)
"""Numbers of drafts per step at which a lookup's engine is measured. On SmolLM2's profiles suffix
lookup delivers 2.29, 2.55, 2.67 and 2.70 tokens per step with 3, 5, 8 and 24 drafts, so numbers in
between gain little, and each takes STEP_ROUNDS blocks."""

PERMUTATIONS = 2000
"""Permutations in the token frequency test: enough to resolve the gate's p-value limit, 0.001."""

SEED = 0
"""Seed for prompt choice and permutations. Requests carry no seed: with speculation the same seed
gives different tokens, seeded requests are sampled more slowly, and vLLM 0.32 cannot serve them on
a CPU."""

RESPONSE_STATES = "response_states"
"""Folder of an evaluation with states of sampled responses, removed when they are replayed."""

ANSWERS = ".jsonl"
"""Suffix of an `eval.task` that names a file of known answers."""

PublicWorkload = Literal["speed_bench", "mt_bench", "gsm8k", "humaneval"]

LONGEST_TIMED = 4096
"""Longest timed response of a run, in tokens, unless `eval.max_tokens` is set."""

LEAST_ARRIVALS = 6
"""Minimum number of requests in an open-loop block; fewer cannot show saturation."""


Bound = NonNegativeInt | Annotated[str, Field(pattern=r"^(100|[0-9]{1,2})%$")]
LengthRange = tuple[Bound, Bound | None]


def round_up_tokens(tokens: int) -> int:
    """The next multiple of 64 above `tokens`."""
    return 64 * (tokens // 64 + 1)


class ScenarioConfig(BaseModel):
    """Selects held-out requests by the lengths of their logged prompt and response."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    prompt_tokens: LengthRange | None = None
    """Minimum and maximum prompt length in tokens, as the engine sees it, both inclusive; null: no
    limit. Percentages are quantiles of the held-out part: ["50%", "100%"] is the longer half."""

    response_tokens: LengthRange | None = None
    """Minimum and maximum length of the logged response, in tokens."""

    max_tokens: PositiveInt | None = None
    """Maximum response length in tokens, for all variants; null: `eval.max_tokens`."""


class GateConfig(BaseModel):
    """Conditions that a custom speculator must meet to be exported."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    min_acceptance_ratio: PositiveFloat = 1.0
    """The interval of custom / base acceptance length (exact replay, held-out part) must lie above
    this."""

    min_speed_ratio: PositiveFloat = 1.0
    """The interval of custom / base tokens/s at the main concurrency must lie above this in every
    engine mode."""

    least_speed: ClassVar[float] = 0.97
    """The intervals of custom / base at the other concurrencies, and of custom / none at every
    concurrency, must lie above this: custom must be shown to be at most 3 % slower."""

    max_general_loss: float = Field(0.05, ge=0, lt=1)
    """Maximum loss of acceptance length on general traffic, relative to base: the interval of
    custom / base must lie above 1 minus this. Checked if the recipe has `traffic.general`."""

    near_tie_nats: ClassVar[float] = 0.125
    """The first differing token is a near tie if the target's log-probabilities of the two tokens
    differ by at most this (nats). In bf16, logits between 16 and 32 are multiples of 0.125, so
    engines that batch differently disagree about such tokens even without speculation. Other
    differences are unexplained; if they occur only with speculation, the verdict is at best
    `undecided`."""

    max_tail_excess: ClassVar[float] = 0.01
    """Maximum increase over no speculation in the share of sampled tokens whose probability under
    the target is below 1e-4. A broken rejection sampler shows up here first (0.0015 is typical; a
    broken one gave 0.089)."""

    min_same_text_p: ClassVar[float] = 0.001
    """Minimum p-value in the permutation test of whether sampled responses have the same token
    frequencies with and without speculation. It is also the false alarm rate for a lossless
    speculator."""

    max_task_loss: float = Field(0.1, gt=0, lt=1)
    """Equivalence margin for task accuracy. The 90 % interval of the difference (custom minus none)
    must lie within plus or minus this value: two one-sided tests at 5 %. Narrower margins and
    noisier outcomes need more responses (`verification_requests`): 31 for a margin of 0.05 if no
    outcome changes, 68 for 0.1 if one in four changes by chance."""

    max_replay_difference: ClassVar[float] = 0.02
    """Maximum relative difference between the steps predicted by exact replay and those counted by
    the engine for the same responses. A larger difference means that trainer and engine do not run
    the same speculator."""

    replay_margin: ClassVar[float] = 0.01
    """Added to the engine's own variation: the relative change in its step count when it repeats
    some greedy responses with different batching. If the sum exceeds `max_replay_difference`, it is
    the limit instead, capped at three times `max_replay_difference`. A difference between the cap
    and the sum leaves the check undecided."""


class SloConfig(BaseModel):
    """Latency limits of the endpoint, for its capacity (`eval.capacity_minutes`)."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    ttft_ms: PositiveFloat | None = None
    """Limit of the 95th percentile of the time to first token, in milliseconds; null: what no
    speculation takes at the main concurrency."""

    tpot_ms: PositiveFloat | None = None
    """Limit of the 95th percentile over requests of the time per output token after the first, in
    milliseconds; null: what no speculation takes at the main concurrency."""


class CostConfig(BaseModel):
    """Prices for the report's cost section."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    gpu_hour_price: PositiveFloat
    """Price of one GPU for one hour."""

    currency: str = Field(default="", max_length=12)
    """Currency of the price, such as EUR; the report names it next to prices."""

    tokens_per_s: PositiveFloat | None = None
    """Total output tokens/s of the customer's endpoints, from which GPU-hours per month follow."""


class ReportConfig(BaseModel):
    """Customer text in reports, terminal output, logs and errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    samples: bool = False
    """Whether to show customer text: three held-out responses step by step in the report, and
    messages of unexpected errors, which may quote a row. If false, no log line, error or report
    contains any. If true, only the owner may read the report, and `privacy.retention: delete_all`
    is refused."""


AUTO_LOOKUP = "auto"
"""Value of `eval.lookup` that measures every lookup that is installed."""


def _lookup(name: str) -> str:
    """Validates the name of a lookup, and that vLLM has the package for it, if any."""
    if name == AUTO_LOOKUP:
        return name
    if name not in lookup_names():
        raise ValueError(f"must be {', '.join((AUTO_LOOKUP, *lookup_names()))}")
    kind_named(name).require_installed()
    return name


class EvalConfig(BaseModel):
    """Evaluation of the base and custom speculators on held-out traffic."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    k: PositiveInt | Literal["auto"] = "auto"
    """Drafted tokens per step. A number applies to base and custom. "auto" chooses k for each of
    them in every engine mode, from the validation part and timed engine steps: the smallest k, up
    to the trained depth, that no larger k beats by more than 1 % in tokens/s at the main
    concurrency (eval/choose_k.py). The k of a lookup is always chosen so, up to 24."""

    current_k: PositiveInt | None = None
    """Drafted tokens per step of today's endpoint. If set, base is also measured at this K, and
    custom must be faster than that too; null: base's best K is the only reference."""

    engine_modes: list[Literal["eager", "compiled"]] = Field(["compiled"], min_length=1)
    """Engine modes in which tokens/s are measured and the verification pass runs. The bundle serves
    in the first one. With a small target, the modes give different results: compilation leaves less
    for speculation to gain."""

    lookup: Annotated[str, AfterValidator(_lookup)] = AUTO_LOOKUP
    """What an endpoint gets without training, measured as a reference that custom must beat, at its
    best settings and K (up to 24). `ngram`: vLLM's n-gram lookup. `suffix`: its suffix lookup,
    which also searches the responses to earlier requests, here those of the training part. `auto`:
    both are replayed, and the faster one is served; suffix lookup only if it is installed
    (`outrider doctor --install-suffix`)."""

    side_by_side: bool = True
    """Whether the server without speculation and the one for base and custom run at the same time,
    so that short blocks of all three can be interleaved. If it is false, or the GPUs have no room
    for all servers at once (each needs its `serving.engine.gpu_memory_utilization` free when it
    starts), the servers alternate once per repeat."""

    concurrency: list[PositiveInt] = Field([1, 4, 8], min_length=1)
    """Numbers of concurrent requests to measure. The first is the main one, the endpoint's usual
    number: there kind and K are chosen, and custom must be faster than base. At the others, it may
    be at most 3 % slower than base; at all of them, at most 3 % slower than no speculation."""

    requests: PositiveInt = 4
    """Held-out prompts per block, or twice the concurrency if that is more. Tokens/s are measured
    until the first request ends that no other follows, while the batch is full. At concurrency 1,
    the variants alternate by request; in one engine, every pair narrows the interval of a ratio. At
    other concurrencies, on a machine whose speed fluctuates, many short blocks narrow it more than
    a few long ones do."""

    measure: Literal["until_decided", "full"] = "full"
    """When to stop measuring. `full` measures all `repeats` in every engine mode. `until_decided`
    evaluates the intervals after 3, 6, 12, ... repeats and after all `repeats`, and stops when all
    speed checks are decided or custom is shown not to be faster than base. Early intervals are
    wider so that they stay valid no matter when the measurement stops
    (eval/stats/sequential.py)."""

    repeats: int = Field(4, ge=2)
    """Blocks per concurrency and variant; with `measure: until_decided`, the maximum. Blocks of
    none, base and custom are interleaved in rotating order, and speeds are compared within a
    repeat. If base and custom run in two engines because their kinds or shapes differ, every repeat
    restarts both. Fewer than 3 repeats decide no comparison of two engines (`starts`)."""

    starts: PositiveInt = 3
    """Maximum number of times that engines are started to compare speeds across two of them, for
    example of custom and of no speculation: speed differs by 3 to 10 % between starts of an engine.
    At most one start per repeat; after three, only if such a comparison is undecided. Fewer than
    three decide nothing."""

    max_tokens: PositiveInt = Field(
        256,
        json_schema_extra={"default": "90th percentile of the logged responses, at most 4096"},
    )
    """Maximum response length in tokens, for all variants; longer responses are cut. Unless it is
    set, nine in ten of the logged responses are shorter; it is at most 4,096, and at most half of
    `serving.engine.max_model_len`."""

    rates: list[PositiveFloat] = []
    """Open-loop rates in requests per second, each measured for every one of `eval.scenarios` with
    none, base and custom in turn. Requests are sent at the log's times, with gaps scaled to the
    rate, without waiting for earlier responses. Empty: closed loop only."""

    rate_seconds: PositiveFloat = 20.0
    """Seconds over which the rate x rate_seconds requests of a block are sent. All rates have the
    same duration, because a queue needs time to grow before saturation shows; a saturated server
    runs until all requests are answered."""

    capacity_minutes: NonNegativeFloat = Field(
        0.0, json_schema_extra={"default": "15; 0 with `effort: trial`"}
    )
    """Maximum minutes of an evaluation for measuring how many requests/s no speculation, base and
    custom serve within the limits of `eval.slo`, and at what cost; 0: not measured."""

    slo: SloConfig = SloConfig()
    """Latency limits."""

    scenarios: dict[Annotated[str, Field(pattern="^[a-z0-9_]+$")], ScenarioConfig] = {}
    """Usage scenarios by name. Each selects held-out requests by the lengths of their logged prompt
    and response, and is measured at each of `eval.rates`, which must not be empty. Without
    scenarios, the rates are measured on the whole held-out part."""

    verification_requests: PositiveInt = 24
    """Held-out prompts in the verification pass (lossless checks, replay against engine, task
    accuracy). Each variant answers them greedily and with the customer's sampling settings."""

    verification_max_tokens: PositiveInt = 400
    """Maximum response length in tokens in the verification pass. It must be enough to finish the
    task; otherwise task accuracy is meaningless."""

    replay_sequences: PositiveInt | None = None
    """Cap on held-out and on general sequences to replay, drawn with a fixed seed; null: all."""

    task: str | None = None
    r"""How to check whether a response solves its task; null: no task accuracy. `module:function`
    names a function (prompt_text, completion_text) -> bool | None, which returns None for a prompt
    without a known answer. Both texts include special tokens, except the completion's
    end-of-sequence token. A .jsonl path names a file of known answers in GSM8K's format, with
    `question` and `answer` in each line. A response whose prompt contains a question is solved if
    its final answer (the last \boxed{}, else the text after ####, else the last number) matches."""

    general: dict[PublicWorkload, str | None] = {}
    """Public workloads on which acceptance by K is also reported: name -> a local file in the hub's
    layout (for `speed_bench`, the folder that NVIDIA's prepare.py writes), or null to load it from
    the hub. The target answers up to 80 prompts of each. Requires captured states."""

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
            raise ValueError(f"contains a value twice: {value}")
        return value

    @model_validator(mode="after")
    def _rates_fit(self) -> "EvalConfig":
        if self.scenarios and not self.rates:
            raise ValueError(
                "eval.scenarios are measured at eval.rates, which is empty; set it, for example to "
                "eval.rates=[1,2,4,8,16]"
            )
        if not self.rates:
            return self
        slowest = min(self.rates)
        sent = self.rate_requests(slowest)
        if sent < LEAST_ARRIVALS:
            raise ValueError(
                f"eval.rates has {slowest:g}, at which eval.rate_seconds = "
                f"{self.rate_seconds:g} sends {sent} requests; at least {LEAST_ARRIVALS} are "
                f"needed: raise eval.rate_seconds to {LEAST_ARRIVALS / slowest:g}"
            )
        return self

    @property
    def main(self) -> int:
        """The main concurrency: the first of `concurrency`."""
        return self.concurrency[0]

    @property
    def replay_dtype(self) -> Literal["float32", "bfloat16"]:
        """Dtype of exact replay; on GPUs bfloat16, which halves time and memory."""
        import torch

        return "bfloat16" if torch.cuda.is_available() else "float32"

    def timed_like(self, p90: int | None, max_model_len: int) -> "EvalConfig":
        """This section with `max_tokens` from the log, unless the recipe sets it.

        `p90` is the 90th percentile of the logged responses in tokens; None if it is not known yet.
        """
        if "max_tokens" in self.model_fields_set:
            return self
        logged = LONGEST_TIMED if p90 is None else round_up_tokens(p90)
        # Half of the positions leave room for the prompt.
        longest = min(logged, LONGEST_TIMED, max_model_len // 2)
        return self.model_copy(update={"max_tokens": longest})

    def block_requests(self, concurrency: int) -> int:
        """Number of prompts in one block at this concurrency."""
        return max(self.requests, 2 * concurrency)

    def rate_requests(self, rate: float) -> int:
        """Number of requests sent at this rate."""
        return round(rate * self.rate_seconds)
