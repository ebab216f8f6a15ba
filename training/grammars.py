"""Masks of the training samples that have a grammar.

Prefetch(..., masks_of=masks_of(spec, target_config))
"""

from collections.abc import Mapping

from outrider.serving.vllm_hooks.grammar_masks import GrammarMasks, TokenMasks
from outrider.speculators.features import SequenceStates
from outrider.training.batches import MasksOf
from outrider.training.distributed.spec import TrainingSpec
from outrider.training.packing import TrainingSample


def masks_of(spec: TrainingSpec, target_config: Mapping[str, object]) -> MasksOf | None:
    """Returns the function that computes samples' masks; None if the run has no grammars.

    Masks are computed for each row again while the model trains: at 129,280 tokens, a stored mask
    would be larger than a state.
    """
    if not spec.grammars:
        return None
    vocabulary = target_config["vocab_size"]
    assert isinstance(vocabulary, int)
    grammars = GrammarMasks(spec.target_dir, vocabulary, spec.structured_outputs)

    def of(sample: TrainingSample, states: SequenceStates) -> TokenMasks | None:
        number = spec.sampling[sample.sequence_id].grammar
        if number < 0:
            return None
        token_ids = states.token_ids[: sample.length].tolist()
        return grammars.of(spec.grammars[number], token_ids, states.completion_start)

    return of
