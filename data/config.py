"""What a recipe says about its traffic: where the logs are, what is personal in them, how they are split and captured.

python -c "from outrider.data.config import SplitConfig; print(SplitConfig())"
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class TrafficConfig(_Section):
    """`traffic:` the logs."""

    path: str | list[str]
    """A file, a folder (its .jsonl, .ndjson, .json, .log, .parquet, .arrow and .pkl files at any depth, plain, .gz or .zst), a glob, an
    fsspec URL (`s3://...`, `hf://datasets/...`), or a list of these."""

    format: str = "auto"
    """Name of a log format (see docs/traffic.md), or `auto`: the first format that recognises a file's beginning."""

    max_reject_fraction: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of rows that may be rejected. Above it the run stops: a log that is mostly unreadable is a wrong format or target."""

    model: str | list[str] | None = None
    """Keep only exchanges with this model (or one of these names of it), as request or response names it, without its path and
    without regard to case; the others are rejected as `other_model` and do not count towards `max_reject_fraction`. Default: all,
    and an error if they name more than one model."""

    max_copies: int | None = Field(default=None, ge=1)
    """Train on at most this many exchanges with one and the same prompt, the latest. Copies are what the endpoint serves, so they
    stay by default; a health check or a load test among them may outweigh all the rest."""

    general: str | list[str] | None = None
    """Logs of other traffic than the customer's, given as `path` is: an endpoint's at large, say. Some of it is trained on, so that the
    speculator does not forget what it could; some is kept for measuring that (docs/evaluation.md). Default: none."""

    general_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the training sequences that are drawn from `general`; 0 only measures on it."""

    min_on_policy: float | None = Field(default=0.95, ge=0.0, le=1.0)
    """Least share of a completion's tokens that must be likely under the target: within top_p at the logged temperature, or within
    0.95 of the mass where top_p is larger, less what sampling leaves outside anyway. 1 is the target's own text. Sequences below are
    kept aside (features/quarantine.json) and neither trained on nor measured; the run stops if they are more than half. On nano R1's
    own traffic none of 383 exact and 1.2 % of 337 retokenized sequences fall below 0.95, and 95 % of completions that answer another
    prompt. Null: none is set aside."""


PersonalKind = Literal[
    "EMAIL_ADDRESS",
    "PHONE_NUMBER",
    "CREDIT_CARD",
    "IBAN_CODE",
    "IP_ADDRESS",
    "US_SSN",
    "CRYPTO",
    "URL",
    "MAC_ADDRESS",
    "AU_MEDICARE",
    "AU_TFN",
    "CA_SIN",
    "DE_SOCIAL_SECURITY",
    "DE_TAX_ID",
    "ES_NIE",
    "ES_NIF",
    "FI_PERSONAL_IDENTITY_CODE",
    "IN_AADHAAR",
    "IT_FISCAL_CODE",
    "KR_RRN",
    "PL_PESEL",
    "SE_PERSONNUMMER",
    "TH_TNIN",
    "TR_NATIONAL_ID",
    "UK_NHS",
    "US_ITIN",
    "ZA_ID_NUMBER",
]
"""Presidio's names of what a pattern or a checksum tells; docs/traffic.md says what each is."""


class PrivacyConfig(_Section):
    """`privacy:` personal data in the traffic. Needs the extra `privacy` of the package unless `mode` is `off`."""

    mode: Literal["off", "report", "surrogate"] = "off"
    """`report` counts what is found by kind and field, in traffic/privacy.json. `surrogate` also replaces it in the prompts, the same
    value by the same surrogate throughout the log, before anything is replayed, and leaves out the exchanges whose response holds
    some: their tokens would no longer be the target's."""

    entities: list[PersonalKind] = [
        "EMAIL_ADDRESS",
        "PHONE_NUMBER",
        "CREDIT_CARD",
        "IBAN_CODE",
        "IP_ADDRESS",
        "US_SSN",
        "CRYPTO",
    ]
    """What is looked for, by pattern and checksum. Names, addresses and dates of birth need a model and are not found."""

    min_score: float = Field(default=0.5, ge=0.0, le=1.0)
    """Least confidence, Presidio's scale: 1.0 a checksum holds; 0.5 to 0.75 a shape that little else has, or a loose one behind a word
    such as "phone"; below, loose shapes alone, mostly order numbers and amounts."""

    phone_regions: list[str] = [
        "US",
        "GB",
        "DE",
        "FR",
        "ES",
        "IT",
        "NL",
        "IN",
        "CN",
        "JP",
        "BR",
        "AU",
    ]
    """Countries (ISO 3166) whose national spellings of a telephone number are known; one that begins with + needs no country."""

    key_file: str | None = None
    """A file with at least 16 bytes of secret. Runs with the same key give the same surrogates. Default: a key of the run's own, made at
    first use in traffic/privacy.key."""

    regenerate: bool = False
    """With `mode: surrogate`: have the target answer anew, from the prompt with surrogates, where a response holds personal data or repeats
    some of the prompt's, instead of leaving the exchange out. The capture does it, with the logged temperature and top_p and as many
    tokens as the logged response had at most; it takes the time of decoding them."""

    retention: Literal["keep", "delete_features", "delete_all"] = "keep"
    """What is deleted once the bundle is exported: nothing, the hidden states, or these, the table of sequences and the responses of the
    evaluation. Weights, counts and the report stay."""

    @field_validator("entities", "phone_regions")
    @classmethod
    def _names_something_once(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("must name at least one; privacy.mode: off looks for nothing")
        if len(set(value)) != len(value):
            raise ValueError("names a value twice")
        return value

    @model_validator(mode="after")
    def _regenerates_what_was_replaced(self) -> "PrivacyConfig":
        if self.regenerate and self.mode != "surrogate":
            raise ValueError(
                f"privacy.regenerate = true has nothing to answer anew under privacy.mode = {self.mode!r}; set privacy.mode: surrogate, "
                "or leave regenerate out"
            )
        return self


NOT_INSTALLED = (
    "privacy.mode looks for personal data with presidio-analyzer, which is not installed; install the extra `privacy` "
    "(pip install 'outrider[privacy]') or set privacy.mode: off"
)


class SplitConfig(_Section):
    """`split:` training, validation and held-out parts, by session and time."""

    validation_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the sessions for choosing the checkpoint and K: the latest before the held-out part."""

    heldout_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Share of the sessions for the final measurement: the latest of all. Nothing is chosen on it."""

    near_duplicate_similarity: float = Field(default=0.9, gt=0.0, le=1.0)
    """Jaccard similarity of two prompts' word 5-grams (without boilerplate) from which a validation or held-out prompt counts
    as seen in training and is left out."""

    max_train_sequences: int | None = Field(default=None, ge=1)
    """Train on at most this many sequences, a seeded sample. Capture and training cost grow with it. Default: all."""

    max_validation_sequences: int | None = Field(default=None, ge=1)
    """Validate on at most this many sequences, a seeded sample. Default: all."""

    max_heldout_sequences: int | None = Field(default=None, ge=1)
    """Measure on at most this many sequences, a seeded sample. Default: all."""

    max_general_sequences: int = Field(default=200, ge=1)
    """Measure on at most this many sequences of `traffic.general`, its latest; a fifth of it at most."""

    seed: int = 0
    """Seed of the samples."""

    @model_validator(mode="after")
    def _leaves_training(self) -> "SplitConfig":
        held_back = self.validation_fraction + self.heldout_fraction
        if held_back >= 1.0:
            raise ValueError(
                f"split.validation_fraction + split.heldout_fraction = {held_back:g} leaves no session to train on; "
                "lower them to a sum below 1"
            )
        return self


StateDtype = Literal["bf16", "fp8"]


def bytes_per_token(values: int, dtype: StateDtype, streams: int = 1) -> int:
    """Bytes of a token in the feature store: its states, their FP8 scales, and its id in 4 bytes.

    `values` is the sum of the widths of the streams.
    """
    return (2 * values if dtype == "bf16" else values + 4 * streams) + 4


class CaptureConfig(_Section):
    """`capture:` hidden states of the target over the traffic."""

    dtype: StateDtype = "bf16"
    """What the states are stored as: `bf16`, two bytes a value, as the engine computed them; or `fp8`, one byte a value (e4m3) and one
    float32 scale a token: half the disk. docs/training.md has what that changes in acceptance. They are read back as bf16."""

    tokens_per_s: float | None = Field(default=None, gt=0.0)
    """What `--dry-run` is to assume of capture's speed, in tokens/s; changes nothing else. Null: the measured rate of the embedded
    target, and no time for any other."""

    shard_megabytes: float = Field(default=64.0, gt=0.0)
    """Size of a feature shard in MB; an interrupted capture loses at most one."""

    batch_tokens: int = Field(default=65536, ge=1)
    """Tokens handed to the engine at a time, in sequences as they come. Bounds the states held in memory
    (tokens x hidden size x 2 bytes); the engine schedules within it."""

    self_check_sequences: int = Field(default=8, ge=1)
    """Sequences on which lm_head over the captured states is compared with the engine's own log-probabilities."""

    max_logprob_difference: float = Field(default=0.15, gt=0.0)
    """Largest accepted 99th percentile of |log-probability rebuilt from the states - the engine's|, in nats. Not the maximum:
    bf16 rounding flips an expert now and then, and one such token says nothing about the rest."""

    on_policy_positions: int = Field(default=1024, ge=1)
    """Tokens of each completion, evenly spread over it, at which the target is asked whether they are its own; shorter completions
    are asked throughout. It costs lm_head and a few passes over the vocabulary for each, in the engine."""

    min_top1_agreement: float = Field(default=0.95, gt=0.0, le=1.0)
    """Least accepted share of positions where both name the same most probable token."""
