"""The `adapt` section of a recipe: when `adapt-speculator` trains again, and at what cost.

AdaptConfig(window=500, min_drop=0.03)
"""

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator


class AdaptConfig(BaseModel):
    """Following a live endpoint's traffic: windows, rounds and budget."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    window: PositiveInt = 500
    """Rows of the log (exchanges, in most formats) that are captured and measured together. A
    decision is made after each window, and a round trains on at most four windows' worth of
    sequences. The interval of a decision is over sessions, so a window should have 30 or more."""

    from_start: bool = False
    """Whether the first start reads what the log holds already. false: only what comes later."""

    min_drop: float = Field(default=0.03, ge=0, lt=1)
    """A round starts when the acceptance length of the speculator in use has fallen beyond chance
    since its release, and by at least this share."""

    fresh: PositiveInt | None = 5000
    """Rows since the last round after which a round starts without a fall; doubled after each round
    in a row that did not ship. null: never."""

    max_gb: PositiveFloat = 200.0
    """Most disk space of the windows, their text and hidden states, in gigabytes. Of windows of
    earlier rounds a random sample is kept, so that all earlier traffic is equally likely; where
    that is not enough, the oldest ones since the last round are deleted too. Windows older than 30
    days are deleted in any case, and with `privacy.retention` other than `keep` as soon as their
    round has ended."""

    gpu_hours_per_day: PositiveFloat | None = None
    """Most GPU-hours of capture, training and replay within 24 hours, on the GPUs of
    `serving.engine`. Beyond it new windows wait. null: no limit."""

    @model_validator(mode="after")
    def _round_trains_on_a_window(self) -> "AdaptConfig":
        if self.fresh is not None and self.fresh < self.window:
            raise ValueError(
                f"adapt.fresh = {self.fresh} is below adapt.window = {self.window}: decisions are"
                " made after whole windows; raise adapt.fresh or lower adapt.window"
            )
        return self
