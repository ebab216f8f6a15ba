"""The config of a usage scenario: held-out requests selected by their logged lengths.

ScenarioConfig(prompt_tokens=(1024, None), response_quantiles=(0.0, 0.5), max_tokens=512)
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Tokens = tuple[NonNegativeInt, PositiveInt | None]
Quantiles = tuple[Share, Share]


class ScenarioConfig(BaseModel):
    """Held-out requests whose logged prompt and response lengths lie in a range.

    Without a range, every length does.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    prompt_tokens: Tokens | None = None
    """Least and most tokens of the prompt as the engine sees it, both included; null:
    no limit."""

    prompt_quantiles: Quantiles | None = None
    """The same as shares of the held-out part: [0.5, 1.0] is the longer half. Either this or
    `prompt_tokens`."""

    response_tokens: Tokens | None = None
    """Least and most tokens of the logged response, both included; null: no limit."""

    response_quantiles: Quantiles | None = None
    """The same as shares of the held-out part. Either this or `response_tokens`."""

    max_tokens: PositiveInt | None = None
    """Longest measured response in tokens; longer ones are cut, for every variant alike. Null:
    `eval.max_tokens`."""

    @model_validator(mode="after")
    def _ranges(self) -> "ScenarioConfig":
        for length in ("prompt", "response"):
            tokens, quantiles = (
                getattr(self, f"{length}_tokens"),
                getattr(self, f"{length}_quantiles"),
            )
            if tokens is not None and quantiles is not None:
                raise ValueError(
                    f"gives both {length}_tokens and {length}_quantiles; give one of them"
                )
            least, most = tokens or quantiles or (0, None)
            if most is not None and least > most:
                raise ValueError(
                    f"the range of {length} lengths [{least}, {most}] ends before it begins"
                )
        return self
