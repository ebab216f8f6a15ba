"""Slices: the parts of the traffic by which every table is broken down.

A dimension is a logged field (tenant, route), the fidelity of the tokens, the sampling settings, or
the prompt template. Each of its names lists the ids of its sequences.

A template is a beginning that many prompts share: their first words. Templates are numbered by size
rather than named, since their words are the customer's.

    slices = name_slices(load_sequences(sequences_dir))
    slices                                   # {"tenant": {"acme": [ids]}, "template": {...}}
    slices = load_slices(run / "split")      # as the split stage named them
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset

from outrider.common.files import read_json, write_json

FILE = "slices.json"
FIELDS = ("tenant", "route", "fidelity")
"""Columns of the table that are slices unchanged."""

LARGEST = 20
"""Maximum number of names in a dimension; further sequences form the slice `others`."""

TEMPLATE_WORDS = 12
"""First words by which prompts of one template agree."""

MIN_TEMPLATE_SHARE, MIN_TEMPLATE_PROMPTS = 0.02, 5
"""Minimum share and number of prompts that share a beginning for it to be a template."""

Slices = dict[str, dict[str, list[str]]]
"""dimension -> name -> sequence ids"""


def name_slices(table: Dataset) -> Slices:
    """Assigns every sequence to a slice of each dimension; names are sorted by size."""
    ids = table["sequence_id"][:]
    named = {field: [value or "not logged" for value in table[field]] for field in FIELDS}
    sampling = zip(
        _rounded(table["temperature"]), _rounded(table["top_p"]), table["top_k"], strict=True
    )
    named["sampling"] = [
        f"temperature {temperature:g}, top_p {top_p:g}" + (f", top_k {top_k}" if top_k else "")
        for temperature, top_p, top_k in sampling
    ]
    named["template"] = name_templates(table["prompt_text"][:])
    slices: Slices = {}
    for dimension, names in named.items():
        kept = {name for name, _ in Counter(names).most_common(LARGEST)}
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for sequence_id, name in zip(ids, names, strict=True):
            groups[name if name in kept else "others"].append(sequence_id)
        slices[dimension] = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    return slices


def write_slices(slices: Slices, split_dir: Path) -> None:
    """Publishes the slices, readable by their owner only: tenants and routes are confidential."""
    write_json(Path(split_dir) / FILE, slices, private=True)


def load_slices(split_dir: Path) -> Slices:
    """Returns the slices of a split."""
    return read_json(Path(split_dir) / FILE)


def name_templates(prompts: Sequence[str]) -> list[str]:
    """Returns `template 1`, `template 2`, ... (by size) or `no template` for each prompt."""
    beginnings = [tuple(re.findall(r"\w+", prompt[:2000])[:TEMPLATE_WORDS]) for prompt in prompts]
    least = max(MIN_TEMPLATE_SHARE * len(prompts), MIN_TEMPLATE_PROMPTS)
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
