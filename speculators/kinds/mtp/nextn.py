"""An MTP layer once more as the draft model that SGLang loads, `DeepseekV3ForCausalLMNextN`.

    write_nextn(directory, out_dir)       # --speculative-draft-model-path out_dir

SGLang calls the layer NextN and loads it as a model of one layer: the tensors are
`model.layers.0.*`, and config.json is the target's with that architecture and `num_hidden_layers`
1. Newer versions also read the plain directory, whose layer follows the target's last one; this one
is read by all. Embedding and head are shared with the target and skipped when they are in the
directory, so they are not written. The tensors keep their bytes, FP8 scales included.

Read in sgl-project/sglang, commit 29bd4e85 (2026): models/deepseek_nextn.py and
models/deepseek_common/deepseek_weight_loader.py.
"""

from pathlib import Path

from outrider.common.files import read_json
from outrider.speculators.checkpoints.write import write_checkpoint
from outrider.speculators.kinds.mtp.checkpoint import stored_mtp_tensors
from outrider.speculators.kinds.mtp.tensors import is_derived, layer_prefix

ARCHITECTURE = "DeepseekV3ForCausalLMNextN"
LAYER = "model.layers.0."


def write_nextn(directory: Path, out_dir: Path) -> None:
    """Publishes the draft-model directory of a speculator's directory, atomically."""
    config = read_json(Path(directory) / "config.json")
    prefix = layer_prefix(config)
    renamed = {
        LAYER + name.removeprefix(prefix): tensor
        for name, tensor in stored_mtp_tensors(Path(directory))
        if not is_derived(name)
    }
    config |= {"architectures": [ARCHITECTURE], "num_hidden_layers": 1}
    write_checkpoint(config, renamed, out_dir)
