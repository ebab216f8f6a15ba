"""The target's own speculator in a directory of its layer alone, made once.

    served_base(target_dir, target_dir, cache)     # CACHE/mtp-0123abcd...: config.json, one file

vLLM loads a drafter by walking every shard of the directory that `--speculative-config` names. For
DeepSeek-R1's own layer that is the target's directory: 671 GB are read a second time for 11.6 GB.
The copy is named by the content of the layer's shards, so runs on the same target share it.
"""

from pathlib import Path

from outrider.common.fingerprint import sampled_digest
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.protocol import Origin


def served_base(base_dir: Path, target_dir: Path, cache: Path) -> Path:
    """`base_dir`, or the copy of the target's own layer where that is the base."""
    base_dir, target_dir = Path(base_dir), Path(target_dir)
    if base_dir.resolve() != target_dir.resolve():
        return base_dir
    kind, layout = trainable_kind_of(target_dir), read_layout(target_dir)
    shards = layout.files(kind.native_tensors(layout))
    files = [target_dir / "config.json", *(target_dir / shard for shard in shards)]
    copy = Path(cache) / f"{kind.name}-{sampled_digest(files)[:16]}"
    if not (copy / "config.json").is_file():  # published whole
        copy.parent.mkdir(parents=True, exist_ok=True)
        kind.write((), Origin(target_dir, target_dir), copy)
    return copy
