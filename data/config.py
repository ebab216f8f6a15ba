"""Configuration of the traffic: logs, personal data, split and capture.

python -c "from outrider.data.config import SplitConfig; print(SplitConfig())"
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


FieldPath = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
FieldPaths = FieldPath | Annotated[list[FieldPath], Field(min_length=1)] | None


class FieldsConfig(_Section):
    """`traffic.fields:` names that your application gave to fields of the log.

    Each is a path of keys from the top of a row, such as `context.thread`, or a list of paths, of
    which the first that a row has counts. It replaces the names that Outrider knows, so rows
    without it have no such field."""

    session: FieldPaths = None
    """The id of the conversation."""

    user: FieldPaths = None
    """The id of the end user."""

    tenant: FieldPaths = None
    """The customer or team that the user belongs to."""

    route: FieldPaths = None
    """The endpoint, feature or application that sent the request."""

    time: FieldPaths = None
    """The time of the request: seconds to nanoseconds since 1970, or ISO 8601."""

    def paths(self) -> dict[str, tuple[str, ...]]:
        """Returns the paths of each field that is set."""
        return {
            name: (value,) if isinstance(value, str) else tuple(value)
            for name, value in self
            if value is not None
        }


class TrafficConfig(_Section):
    """`traffic:` the logs."""

    path: str | Annotated[list[str], Field(min_length=1)]
    """A file, a folder, a glob, an fsspec URL (`s3://...`, `hf://datasets/...`), or a list of
    these. All files of a folder are read, at any depth and whatever their names; those without a
    log are named. Files may be compressed, in archives, and in any encoding of Unicode."""

    format: str = "auto"
    """Name of a log format (docs/how-to/log-formats.md), or `auto`: the first format that
    recognizes the beginning of a file."""

    max_reject_fraction: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Maximum share of rows that may be rejected. The run stops above it, because many rejects
    usually mean the wrong format or the wrong target. Failed requests and rows of other APIs do not
    count, but may not be more than half of the requests; a value above 0.5 also raises this
    share."""

    model: str | list[str] | None = None
    """Keep only exchanges of this model, or of these models. Names are compared with those in the
    request or the response, ignoring paths and case. Other exchanges are rejected as
    `other_model` and do not count towards `max_reject_fraction`. Default: keep all, and stop if the
    log has several models."""

    fields: FieldsConfig = FieldsConfig()
    """Names of sessions, users, tenants, routes and times, if Outrider does not know them."""

    server: Literal["sglang"] | None = None
    """The engine that wrote the log, if it is SGLang and a gateway dropped `matched_stop` from its
    responses. SGLang joins a message's text parts with a space, vLLM with a line break. Responses
    with `matched_stop` are read by SGLang's rules anyway. Default: vLLM's rules for all others."""

    users: Literal["one", "many", "unknown"] = "unknown"
    """Whose requests these are, if the log names no users, or only one. Sessions of a user resemble
    each other, so intervals must be wider if a few users sent them all. `one`: a batch job or a
    single application, whose sessions are independent; `many`: so many users that none has a
    notable share; `unknown`: both intervals are reported, and the wider decides."""

    tpot_ms: float = Field(default=30.0, gt=0)
    """Milliseconds per output token of the endpoint that wrote the log. Used to estimate how many
    requests it had in flight, where the log has times of requests but no durations."""

    general: str | list[str] | None = None
    """Logs of traffic other than the customer's, in the same form as `path`; for example, all
    traffic of an endpoint. Part of this traffic is trained on, to prevent forgetting; part is held
    out, to measure forgetting. Default: none."""


PersonalKind = Literal[
    "EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "US_SSN", "CRYPTO",
    "URL", "MAC_ADDRESS", "AU_MEDICARE", "AU_TFN", "CA_SIN", "DE_SOCIAL_SECURITY", "DE_TAX_ID",
    "ES_NIE", "ES_NIF", "FI_PERSONAL_IDENTITY_CODE", "IN_AADHAAR", "IT_FISCAL_CODE", "KR_RRN",
    "PL_PESEL", "SE_PERSONNUMMER", "TH_TNIN", "TR_NATIONAL_ID", "UK_NHS", "US_ITIN", "ZA_ID_NUMBER",
    "SECRET",
]  # fmt: skip
"""Presidio's names for the kinds that patterns or checksums find, and `SECRET` for API keys and
tokens (docs/how-to/privacy.md)."""


class PrivacyConfig(_Section):
    """`privacy:` personal data in the traffic.

    Needs the package's `privacy` extra unless `mode` is `off`.
    """

    mode: Literal["off", "report", "surrogate"] = "off"
    """`report` counts findings by kind and field in traffic/privacy.json. `surrogate` also replaces
    them in the prompts before any replay; the same value gets the same surrogate throughout the
    log. Exchanges whose response contains personal data are left out unless `regenerate` is set,
    because with replaced tokens they would not be on-policy."""

    entities: list[PersonalKind] = Field(
        min_length=1,
        default=[
            "EMAIL_ADDRESS",
            "PHONE_NUMBER",
            "CREDIT_CARD",
            "IBAN_CODE",
            "IP_ADDRESS",
            "US_SSN",
            "CRYPTO",
            "SECRET",
        ],
    )
    """Kinds to look for, by pattern and checksum. Names, addresses and dates of birth need a model
    and are not found."""

    min_score: ClassVar[float] = 0.5
    """Minimum confidence on Presidio's scale. 1.0: a valid checksum. 0.5 to 0.75: a distinctive
    shape, or a loose shape after a word such as "phone". Lower: loose shapes alone, mostly order
    numbers and amounts."""

    phone_regions: list[str] = Field(
        min_length=1,
        default=[
            *("US", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "CN", "JP", "BR", "AU"),
            *("RU", "PT", "MX", "AT", "CH", "BE", "PL", "SE", "TR", "KR", "UA", "AR", "CO"),
            *("TW", "HK", "SG", "IE", "ZA"),
        ],
    )
    """Countries (ISO 3166) whose national telephone number formats are recognized. Numbers that
    begin with + or 00 need no country."""

    key_file: str | None = None
    """A file with at least 16 secret bytes. Runs with the same key produce the same surrogates and
    the same digests of user ids; digests are stored in every mode. Default: one key per run, in
    traffic/privacy.key."""

    regenerate: bool = False
    """With `mode: surrogate`: if the logged response contains personal data or repeats some of the
    prompt's, the target generates a new response to the prompt with surrogates. If false, such
    exchanges are left out. Capture generates the new responses, with the logged sampling settings
    and at most as many tokens as were logged."""

    retention: Literal["keep", "delete_features", "delete_all"] = "keep"
    """Data to delete after the bundle is exported. `keep`: none; `delete_features`: the hidden
    states; `delete_all`: also the table of sequences, the grammars of requests and the responses of
    the evaluation. Weights, counts and the report are always kept. `outrider adapt` deletes a
    round's windows of traffic when the round has ended, unless `retention` is `keep`."""

    @model_validator(mode="after")
    def _regenerates_what_was_replaced(self) -> "PrivacyConfig":
        if self.regenerate and self.mode != "surrogate":
            raise ValueError(
                "privacy.regenerate = true has nothing to regenerate with privacy.mode = "
                f"{self.mode!r}; set privacy.mode: surrogate, or leave regenerate out"
            )
        return self


NOT_INSTALLED = (
    "privacy.mode needs presidio-analyzer, which is not installed; run "
    "`pip install -e '.[privacy]'` in Outrider's checkout, or set privacy.mode: off"
)


class SplitConfig(_Section):
    """`split:` training, validation and held-out parts, by session and time."""

    validation_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of sessions for choosing the checkpoint and K: the latest before the held-out part."""

    heldout_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Share of sessions for the final measurement: the latest ones. No choice depends on them."""

    session_gap_minutes: ClassVar[float] = 30.0
    """In a log without conversation ids, a session ends after a pause of this length, because
    a user id lasts for weeks, and a session that long would span all parts."""

    near_duplicate_similarity: float = Field(default=0.9, gt=0.0, le=1.0)
    """Jaccard similarity of two prompts' word 5-grams, without boilerplate. A validation or
    held-out prompt at least this similar to a training prompt is left out, and so is a held-out
    prompt at least this similar to a validation prompt."""

    general_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of training sequences that are drawn from `traffic.general`. With 0, general traffic is
    measured on but not trained on."""

    max_train_sequences: int | None = Field(default=None, ge=1)
    """Maximum number of training sequences, chosen by seeded sampling. Capture and training cost
    grow with it. Default: all."""

    max_validation_sequences: int | None = Field(default=None, ge=1)
    """Maximum number of validation sequences, chosen by seeded sampling. Default: all."""

    max_heldout_sequences: int | None = Field(default=None, ge=1)
    """Maximum number of held-out sequences, chosen by seeded sampling. Default: all."""

    max_general_sequences: ClassVar[int] = 200
    """Maximum number of sequences of `traffic.general` to measure on: the latest ones, and at most
    a fifth of all of them."""

    @model_validator(mode="after")
    def _leaves_training(self) -> "SplitConfig":
        held_back = self.validation_fraction + self.heldout_fraction
        if held_back >= 1.0:
            raise ValueError(
                f"split.validation_fraction + split.heldout_fraction = {held_back:g} leaves no "
                "session to train on; lower them to a sum below 1"
            )
        return self


StateDtype = Literal["bf16", "fp8"]


def bytes_per_token(values: int, dtype: StateDtype, streams: int = 1) -> int:
    """Bytes per token in a feature store: states, FP8 scales, token id.

    `values` is the sum of the widths of the streams.
    """
    return (2 * values if dtype == "bf16" else values + 4 * streams) + 4


MOST_FURTHER = 3
"""Largest number of further answers to a prompt. With three, 118 logged responses gained 80 % of
what seven times as many did (benchmarks/results/smollm2.md); more were not measured."""


def further_answers(sequences: int, up_to: int) -> int:
    """Returns how many answers a training part of `sequences` gets if every prompt can be asked."""
    return min(max(up_to - sequences, 0), MOST_FURTHER * sequences)


class CaptureConfig(_Section):
    """`capture:` hidden states of the target over the traffic."""

    dtype: StateDtype = "bf16"
    """Storage type of the states. `bf16`: two bytes per value, as the engine computed them. `fp8`:
    one byte per value (e4m3) and one float32 scale per token, half the disk space;
    docs/explanation/training.md describes its effect on acceptance. Both are read as bf16."""

    shard_megabytes: ClassVar[float] = 256.0
    """Size of a feature shard in MB. An interrupted capture loses at most one."""

    batch_tokens: int = Field(default=65536, ge=1)
    """Tokens sent to the engine at a time, in log order. Bounds the states in memory (tokens x
    hidden size x 2 bytes, for the final state and for each layer that the speculator reads); the
    engine forms its own batches from these tokens."""

    answers_up_to: int = Field(
        default=0, ge=0, json_schema_extra={"default": "0; 1000 with `effort: thorough`"}
    )
    """Number of training responses up to which a small log is filled: the target answers the
    training prompts again, at most three times each, with the logged sampling settings, and the
    speculator is trained on these answers as well. `inspect`, lookup and all measurements use the
    logged responses only. Not in `outrider adapt`, nor with `training.features: streamed`. 0:
    never."""

    min_on_policy: float | None = Field(default=0.95, ge=0.0, le=1.0)
    """Minimum share of a completion's tokens that are likely under the target at the logged
    temperature: within top_k, and among the most likely tokens with a total probability of top_p or
    0.95, whichever is smaller. Unlikely tokens count only beyond their expected number, so
    on-policy text has a share of 1. Sequences below the minimum are quarantined
    (features/quarantine.json): neither trained on nor measured. The run stops if more than half are
    quarantined. On nano R1's traffic, 0 of 383 exact and 1.2 % of 337 retokenized sequences are
    below 0.95, as are 95 % of completions taken from other prompts. null: no quarantine."""

    self_check_sequences: ClassVar[int] = 8
    """Number of sequences on which captured states are checked (engine_checks.py)."""

    on_policy_positions: ClassVar[int] = 1024
    """Approximate maximum number of evenly spaced completion tokens checked for being on-policy.
    Each one costs the engine an lm_head evaluation and a few passes over the vocabulary."""
