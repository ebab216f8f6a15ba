"""Slices: groups of traffic by which results are broken down.

A dimension is a logged field (tenant, route), the fidelity of the tokens, the sampling settings, or
the prompt template. Each name in a dimension maps to the ids of its sequences. A template is a
beginning that many prompts share; templates are numbered by size rather than named, since their
words are customer text.

    slices = name_slices(load_sequences(sequences_dir))
    slices                                   # {"tenant": {"acme": [ids]}, "template": {...}}
    slices = load_slices(run / "split")      # as written by the split stage
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset

from outrider.common.files import write_json
from outrider.common.json_forms import read_form

FILE = "slices.json"
Slices = dict[str, dict[str, list[str]]]
"""Sequence ids by dimension and slice name."""


def name_slices(table: Dataset) -> Slices:
    """Assigns every sequence to a slice of each dimension, largest slices first.

    Each of the 20 most frequent names of a dimension has a slice; the rest share the slice
    `others`.
    """
    ids = table["sequence_id"][:]
    unchanged = ("tenant", "route", "fidelity")
    slice_names = {field: [value or "not logged" for value in table[field]] for field in unchanged}
    sampling = zip(
        _rounded(table["temperature"]), _rounded(table["top_p"]), table["top_k"], strict=True
    )
    slice_names["sampling"] = [
        f"temperature {temperature:g}, top_p {top_p:g}" + (f", top_k {top_k}" if top_k else "")
        for temperature, top_p, top_k in sampling
    ]
    slice_names["template"] = name_templates(table["prompt_text"][:])
    slices: Slices = {}
    for dimension, names in slice_names.items():
        frequent_names = {name for name, _ in Counter(names).most_common(20)}
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for sequence_id, name in zip(ids, names, strict=True):
            groups[name if name in frequent_names else "others"].append(sequence_id)
        slices[dimension] = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    return slices


def write_slices(slices: Slices, split_dir: Path) -> None:
    """Writes slices with owner-only access, since tenants and routes are confidential."""
    write_json(Path(split_dir) / FILE, slices, private=True)


def load_slices(split_dir: Path) -> Slices:
    """Returns the slices of a split."""
    path = Path(split_dir) / FILE
    return read_form(Slices, path, f"delete {split_dir} and rerun the command")


def name_templates(prompts: Sequence[str]) -> list[str]:
    """Returns `template 1`, `template 2`, ... (by size) or `no template` for each prompt.

    At least 5 prompts, and at least 2 % of all, with the same first 12 words form a template.
    """
    beginnings = [tuple(re.findall(r"\w+", prompt[:2000])[:12]) for prompt in prompts]
    least = max(0.02 * len(prompts), 5)
    counts = Counter(beginnings).most_common()
    names = {
        beginning: f"template {number}"
        for number, (beginning, count) in enumerate(counts, start=1)
        if count >= least
    }
    return [names.get(beginning, "no template") for beginning in beginnings]


def _rounded(values: Iterable[float]) -> list[float]:
    """Undoes the float32 rounding of the table: 0.6 instead of 0.60000002."""
    return [round(float(value), 4) for value in values]
