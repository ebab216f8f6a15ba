"""Slices: the parts of the traffic by which every table is broken down.

A dimension is a logged field (tenant, route), the fidelity of the tokens, the sampling settings, or
the prompt template. Each of its names lists the ids of its sequences.

Templates are found by common text. The most frequent word 5-gram selects a group of prompts;
5-grams in more than half of the group are its boilerplate; prompts with at least half of that
belong to the template. The search repeats on the rest. Templates are numbered by size rather than
named, since their words are the customer's.

    slices = name_slices(load_sequences(sequences_dir))
    slices                                   # {"tenant": {"acme": [ids]}, "template": {...}}
    slices = load_slices(run / "split")      # as the split stage named them
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset

from outrider.common.files import read_json, write_json
from outrider.data.split.near_duplicates import (
    common_shingles,
    sampled,
    shingle_counts,
    shingles_of,
)

FILE = "slices.json"
FIELDS = ("tenant", "route", "fidelity")
"""Columns of the table that are slices unchanged."""

LARGEST = 20
"""Maximum number of names in a dimension; further sequences form the slice `others`."""

MEMBER_SHARE = 0.5
"""Minimum share of a template's boilerplate that a prompt needs to belong to it."""

MIN_TEMPLATE_SHARE, MIN_TEMPLATE_PROMPTS = 0.02, 5
"""Minimum share and number of prompts that share a text for it to be a template."""

Slices = dict[str, dict[str, list[str]]]
"""dimension -> name -> sequence ids"""


def name_slices(table: Dataset) -> Slices:
    """Assigns every sequence to a slice of each dimension; names are sorted by size."""
    ids = table["sequence_id"][:]
    named: dict[str, list[str]] = {}
    for field in FIELDS:
        named[field] = [value or "not logged" for value in table[field]]
    sampling = zip(
        _rounded(table["temperature"]), _rounded(table["top_p"]), table["top_k"], strict=True
    )
    named["sampling"] = [
        f"temperature {temperature:g}, top_p {top_p:g}" + (f", top_k {top_k}" if top_k else "")
        for temperature, top_p, top_k in sampling
    ]
    named["template"] = name_templates(table["prompt_text"][:])
    return {dimension: _grouped(ids, names) for dimension, names in named.items()}


def write_slices(slices: Slices, split_dir: Path) -> None:
    """Publishes the slices, readable by their owner only: tenants and routes are confidential."""
    write_json(Path(split_dir) / FILE, slices, private=True)


def load_slices(split_dir: Path) -> Slices:
    """Returns the slices of a split."""
    return read_json(Path(split_dir) / FILE)


def name_templates(prompts: Sequence[str]) -> list[str]:
    """Returns `template 1`, `template 2`, ... (by size) or `no template` for each prompt."""
    chosen = [shingles_of(prompt) for prompt in sampled(prompts)]
    cores = _cores(chosen, max(MIN_TEMPLATE_SHARE * len(chosen), MIN_TEMPLATE_PROMPTS))
    members = [_closest(shingles_of(prompt), cores) for prompt in prompts]
    sizes = Counter(core for core in members if core is not None)
    names: dict[int | None, str] = {None: "no template"}
    for number, (core, _) in enumerate(sizes.most_common(), start=1):
        names[core] = f"template {number}"
    return [names[core] for core in members]


def _cores(prompts: list[frozenset[int]], least: float) -> list[frozenset[int]]:
    """Finds the boilerplate of each template, one after the other."""
    counts = shingle_counts(prompts)
    common = {shingle for shingle, count in counts.items() if count >= least}
    remaining = [prompt & common for prompt in prompts]
    cores: list[frozenset[int]] = []
    while len(cores) < LARGEST:
        counts = shingle_counts(remaining)
        # Ties go to the larger hash, so that the same prompts give the same templates.
        count, shingle = max(
            ((count, shingle) for shingle, count in counts.items()), default=(0, 0)
        )
        if count < least:
            break
        group = [prompt for prompt in remaining if shingle in prompt]
        core = common_shingles(group)
        # At least some of the group are removed: on average they have more than half of the core.
        remaining = [
            prompt for prompt in remaining if len(prompt & core) < MEMBER_SHARE * len(core)
        ]
        cores.append(core)
    return cores


def _closest(prompt: frozenset[int], cores: Sequence[frozenset[int]]) -> int | None:
    share, core = max(
        ((len(prompt & core) / len(core), -index) for index, core in enumerate(cores)),
        default=(0.0, 0),
    )
    return -core if share >= MEMBER_SHARE else None


def _grouped(ids: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    kept = {name for name, _ in Counter(names).most_common(LARGEST)}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for sequence_id, name in zip(ids, names, strict=True):
        groups[name if name in kept else "others"].append(sequence_id)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _rounded(values: Iterable[float]) -> list[float]:
    """Undoes the float32 rounding of the table: 0.6 instead of 0.60000002."""
    return [round(float(value), 4) for value in values]
