"""The `adapt` section of a recipe: when `adapt-speculator` trains again, on what, and at what cost.

AdaptConfig(window=500, min_drop=0.03)
"""

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator


class AdaptConfig(BaseModel):
    """Following a live endpoint's traffic: windows, rounds, gate and budget."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    window: PositiveInt = 500
    """Rows of the log (exchanges, in most formats) that are captured and measured together. A
    decision is made after each window. Its interval is over sessions, so a window should have 30 or
    more."""

    from_start: bool = False
    """Whether the first start reads what the log holds already. false: only what comes later."""

    most_behind: PositiveInt = 4
    """Windows that may wait to be captured. Rows before them are passed over, so that the newest
    traffic decides where more arrives than can be captured."""

    min_drop: float = Field(default=0.03, ge=0, lt=1)
    """A round starts when the acceptance length of the speculator in use has fallen beyond chance
    since its release, and by at least this share."""

    fresh: PositiveInt | None = 5000
    """Rows since the last round after which a round starts without a fall. null: never."""

    backoff: float = Field(default=2.0, ge=1)
    """`fresh`, and the window that a fall is shown on, are multiplied by this after each round in a
    row that did not ship."""

    train_sequences: PositiveInt = 2000
    """Most sequences of a round, the latest ones."""

    older_share: float = Field(default=0.3, ge=0, lt=1)
    """Share of a round's sequences that are drawn from traffic of earlier rounds, so that the
    speculator does not forget it."""

    max_gb: PositiveFloat = 200.0
    """Most disk space of the windows, their text and hidden states, in gigabytes. Of windows of
    earlier rounds a random sample is kept, so that all earlier traffic is equally likely; where
    that is not enough, the oldest ones since the last round are deleted too."""

    max_days: PositiveFloat = 30.0
    """Days after which a window is deleted in any case. With `privacy.retention` other than `keep`,
    windows are deleted as soon as their round has ended."""

    epochs: PositiveInt = 1
    """Passes over the sequences of a round, in place of `training.epochs`."""

    learning_rate: PositiveFloat | None = None
    """Peak learning rate of a round. null: `training.learning_rate`."""

    min_gain: float = Field(default=0.0, ge=0)
    """Gate: on traffic that arrived after training, the interval of the new speculator's acceptance
    length over that of the one in use must lie above 1 plus this."""

    gpus: PositiveInt = 1
    """Accelerators, or CPU machines, that capture and training occupy; for the budget."""

    gpu_hours_per_day: PositiveFloat | None = None
    """Most GPU-hours of capture, training and replay within 24 hours. Beyond it new windows wait.
    null: no limit."""

    poll_seconds: PositiveFloat = 30.0
    """Time between two looks at the log while there is nothing to do."""

    @model_validator(mode="after")
    def _round_trains_on_a_window(self) -> "AdaptConfig":
        if self.fresh is not None and self.fresh < self.window:
            raise ValueError(
                f"adapt.fresh = {self.fresh} is below adapt.window = {self.window}: decisions are"
                " made after whole windows; raise adapt.fresh or lower adapt.window"
            )
        return self
