"""The random generators of one process, in a safetensors file. Nothing in training draws today; what will is exact to resume.

save_random_state(path); load_random_state(path)
"""

import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file


def save_random_state(path: Path) -> None:
    """The generators of Python, numpy, torch and this process's GPU."""
    kind, keys, *position = np.random.get_state()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(keys.astype(np.int64))}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    metadata = {"python": json.dumps(random.getstate()), "numpy": json.dumps([kind, position])}
    save_file(tensors, path, metadata=metadata)


def load_random_state(path: Path) -> None:
    """What `save_random_state` wrote."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        version, inner, gauss = json.loads(metadata["python"])
        random.setstate((version, tuple(inner), gauss))
        kind, position = json.loads(metadata["numpy"])
        np.random.set_state((kind, file.get_tensor("numpy").numpy().astype(np.uint32), *position))
        torch.set_rng_state(file.get_tensor("torch"))
        if torch.cuda.is_available() and "cuda" in file.keys():  # noqa: SIM118, a safe_open is no dict
            torch.cuda.set_rng_state(file.get_tensor("cuda"))
