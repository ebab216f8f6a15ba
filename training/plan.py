"""What a training run reads and in which order: the same in every process.

    plan = TrainingPlan.of(spec, source)
    plan.steps[0]          # the rows of the first step
    plan.samples           # what the rows' indices refer to

The plan depends only on the run's specification and on the lengths of its sequences. It reads no
states, so it can be made before there is a device or a process group.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from outrider.common.fingerprint import value_digest
from outrider.common.lost_ends import LostEnds
from outrider.data.features.feature_store import FeatureStore
from outrider.speculators.base import base_of, planned_config, warm_start
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.draft_vocabulary import token_counts
from outrider.speculators.features import FeatureSpec
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.kinds.protocol import Origin, TrainableKind
from outrider.training.batches import assemble_batch
from outrider.training.config import TrainingConfig
from outrider.training.distributed.spec import TrainingSpec
from outrider.training.packing import Row, TrainingSample, cut_at_rows, plan_epoch, samples_of_part

if TYPE_CHECKING:
    from outrider.data.streamed import StreamedFeatures

COUNTED_PARTS = 5
"""Parts of the training responses whose tokens are counted apart, for cross-validation."""


@dataclass(frozen=True)
class TrainingPlan:
    """The samples, steps and settings of a training run."""

    spec: TrainingSpec
    source: "FeatureStore | StreamedFeatures"
    """The states of the training and validation parts."""
    kind: TrainableKind
    target_config: Mapping[str, object]
    config: Mapping[str, object]
    """config.json of the speculator to train."""
    features: FeatureSpec
    """The target's states that the speculator reads."""
    base_dir: Path | None
    """The speculator to start from; None to start from scratch."""
    fitted: bool
    """Whether a new speculator is fitted to the traffic; if there is a base, the better one is
    trained (start.py)."""
    settings: TrainingConfig
    """The section `training`, with epochs and learning rate for this start."""
    samples: Sequence[TrainingSample]
    validation_samples: Sequence[TrainingSample]
    left_out: Mapping[str, str]
    """Training sequences without a sample, and why."""
    lost_ends: LostEnds
    steps: Sequence[Sequence[Row]]
    """The rows of each step, of all epochs."""

    @classmethod
    def of(cls, spec: TrainingSpec, source: "FeatureStore | StreamedFeatures") -> "TrainingPlan":
        """Plans the run of a specification.

        Raises:
            OutriderError: If the source lacks states or sequences, or no sample is left.
        """
        kind = trainable_kind(spec.speculator.only_kind)
        target_config = read_config(spec.target_dir / "config.json")
        config = planned_config(spec.speculator, target_config)
        features = kind.features(config, target_config)
        features.require(source.spec, spec.features_dir)
        # Only a base of the same kind gives a warm start.
        base_dir = warm_start(kind, base_of(spec.speculator.base, spec.target_dir))
        # A fit reads all rows before the first step, which a stream delivers only once.
        fitted = not spec.training.streams and kind.can_fit_start(config)
        settings = spec.training.for_start(warm=base_dir is not None, fitted=fitted)
        in_rows = functools.partial(
            samples_of_part,
            source.sequences,
            row_tokens=settings.row_tokens,
            features_dir=spec.features_dir,
        )
        samples, left_out = in_rows(spec.train, part="train")
        validation_samples, _ = in_rows(spec.validation, part="validation")
        parts = {*spec.train, *spec.validation}
        in_parts = [sequence for sequence in source.sequences.values() if sequence.id in parts]
        return cls(
            spec=spec,
            source=source,
            kind=kind,
            target_config=target_config,
            config=config,
            features=features,
            base_dir=base_dir,
            fitted=fitted,
            settings=settings,
            samples=samples,
            validation_samples=validation_samples,
            left_out=left_out,
            lost_ends=cut_at_rows(in_parts, settings.row_tokens),
            steps=_steps(samples, settings),
        )

    @functools.cached_property
    def digest(self) -> str:
        """Digest of everything that determines the weights; a checkpoint of another run differs."""
        return value_digest([self.spec.settings(), self.source.digest])

    @property
    def depth(self) -> int:
        """K: number of drafts."""
        return self.spec.speculator.depth

    @property
    def from_random_weights(self) -> bool:
        """Whether training starts neither from a base nor from a fit."""
        return self.base_dir is None and not self.fitted

    @property
    def probabilistic(self) -> bool:
        """Whether the engine samples drafts from the drafter's distribution."""
        return self.spec.speculator.draft_sample_method == "probabilistic"

    def token_counts(self, samples: Sequence[TrainingSample]) -> torch.Tensor:
        """Counts each token of the vocabulary in the samples' responses, [V]."""
        vocab = self.target_config["vocab_size"]
        assert isinstance(vocab, int)
        responses = (
            self.source.tokens(sample.sequence_id)[sample.first_anchor + 1 : sample.length]
            for sample in samples
        )
        return token_counts(responses, vocab)

    def origin(self, device: torch.device) -> Origin:
        """What the drafter on `device` starts from."""
        return Origin(
            target_dir=self.spec.target_dir,
            base_dir=self.base_dir,
            head=self.spec.speculator.head,
            token_counts=self._counts_in_parts,
            rows=functools.partial(self._fitting_rows, device) if self.fitted else None,
            train=self.spec.speculator.train,
            lora_rank=self.spec.speculator.lora_rank,
        )

    def _counts_in_parts(self) -> torch.Tensor:
        """Counts the tokens of `COUNTED_PARTS` consecutive parts of the training responses, [F, V].

        The samples are in the order of the log, so most sessions are in one part.
        """
        ends = [len(self.samples) * part // COUNTED_PARTS for part in range(COUNTED_PARTS + 1)]
        parts = itertools.pairwise(ends)
        return torch.stack([self.token_counts(self.samples[begin:end]) for begin, end in parts])

    def _fitting_rows(self, device: torch.device) -> Iterator[Batch]:
        """Yields the training part, row by row, in the first epoch's order."""
        row_tokens = self.settings.row_tokens
        steps = plan_epoch(
            samples=self.samples,
            row_tokens=row_tokens,
            rows_per_step=1,
            seed=self.settings.seed,
            epoch=0,
        )
        for (row,) in steps:
            yield assemble_batch(
                store=self.source,
                samples=self.samples,
                row=row,
                row_tokens=row_tokens,
                spec=self.features,
            ).to(device)


def _steps(samples: Sequence[TrainingSample], settings: TrainingConfig) -> list[list[Row]]:
    steps = []
    for epoch in range(settings.epochs):
        steps += plan_epoch(
            samples=samples,
            row_tokens=settings.row_tokens,
            rows_per_step=settings.rows_per_step,
            seed=settings.seed,
            epoch=epoch,
        )
    return steps
