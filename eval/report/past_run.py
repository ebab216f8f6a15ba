"""What tables and comparisons read of a report.json.

    PastRun.read(Path("runs/march")).replay.ratio

All other keys are ignored.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.eval.results.parts import Variant
from outrider.eval.results.report import VERSION


class _Past(BaseModel):
    """An object of a report; keys that are not named are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PastClustered(_Past):
    """A figure over sessions, which has no interval where they are few."""

    value: float
    low: float | None = None
    high: float | None = None
    observations: int | None = None
    clusters: int | None = None


class PastEstimate(PastClustered):
    """A figure with its interval."""

    low: float
    high: float


class PastSlice(_Past):
    """A slice's ratio."""

    name: str
    ratio: PastClustered


class PastReplay(_Past):
    """Exact replay."""

    base: PastClustered
    custom: PastClustered
    ratio: PastClustered
    sequences: int
    sessions: int


class PastRatios(_Past):
    """Ratios of speeds."""

    custom_over_base: PastEstimate
    custom_over_none: PastEstimate
    base_over_none: PastEstimate

    def ratio(self, name: str) -> PastEstimate:
        """The ratio of that name (RATIOS)."""
        found: PastEstimate = getattr(self, name)
        return found


class PastServed(_Past):
    """One engine mode."""

    speed: dict[str, PastRatios] = {}


class PastRateBlock(_Past):
    """A variant at one rate."""

    tokens_per_s: float
    request_tokens_per_s: float
    acceptance_length: float
    achieved: float
    saturated: bool


class PastRateRow(PastRatios):
    """One scenario at one rate."""

    none: PastRateBlock
    base: PastRateBlock
    custom: PastRateBlock

    def of(self, variant: Variant) -> PastRateBlock:
        """The figures of one of VARIANTS."""
        if variant == "none":
            return self.none
        return self.base if variant == "base" else self.custom


class PastVerdict(_Past):
    """The verdict."""

    verdict: str


class PastSpeculator(_Past):
    """Which speculator was evaluated."""

    kind: str | None = None
    weights_sha256: str | None = None


class PastTime(_Past):
    """When the held-out requests were logged, Unix seconds."""

    first: float
    last: float


class PastK(_Past):
    """Drafted tokens per step."""

    base: int
    custom: int

    def __str__(self) -> str:
        return str(self.custom) if self.base == self.custom else f"{self.base} / {self.custom}"


class PastRun(_Past):
    """A report.json as far as it is compared."""

    verdict: PastVerdict | None = None
    k: PastK | None = None
    sampling: dict[str, float] | None = None
    draft_sample_method: str | None = None
    speculator: PastSpeculator | None = None
    heldout_time: PastTime | None = None
    replay: PastReplay | None = None
    general: PastReplay | None = None
    served: dict[str, PastServed] = {}
    slices: dict[str, list[PastSlice]] = {}
    rates: dict[str, dict[str, dict[str, PastRateRow]]] | None = None

    @classmethod
    def read(cls, run: Path) -> "PastRun":
        """The report of a run directory, or of a report.json itself."""
        path = run if run.suffix == ".json" else Path(run) / "report.json"
        if not path.is_file():
            raise OutriderError(
                f"--compare {run}: no {path.name} here; name evaluated run directories"
            )
        report: dict[str, Any] = read_json(path)
        needed = ("verdict", "replay", "served", "k")
        missing = [name for name in needed if report.get(name) is None]
        if missing:
            raise OutriderError(
                f"{path}: no {', '.join(missing)} in it; it is no report of an evaluation with "
                "exact replay"
            )
        if report.get("version") != VERSION:
            raise OutriderError(
                f"{path}: version {report.get('version')}, but version {VERSION} is compared, whose"
                " acceptance lengths are at equal K; run evaluate-speculator again"
            )
        return cls.model_validate(report)
