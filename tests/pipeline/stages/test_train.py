"""Training is refused before it starts if the captured states have changed."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.train import train_on
from tests.data.features.test_feature_store import fill


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_flipped_byte_of_the_states_ends_a_training_before_it_begins(
    part: str, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    fill(run.features, range(10))
    store = FeatureStore.open(run.features)
    first = run.features / store.manifest.shards[0].file
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    parts = {"train": ["0-9"], "validation": ["0-8"], part: ["0-0"]}
    recipe = load_recipe("resume_screening").recipe
    with pytest.raises(OutriderError, match=r"shard-00000\.safetensors: its SHA-256 .* capture"):
        train_on(run, recipe, parts)
