"""Slices: the parts of the traffic by which every table breaks its figures down, named once.

A dimension is a logged field (tenant, route), the fidelity of the tokens, the sampling, or the prompt template; each of its
names holds the ids of its sequences. Templates are found by what their prompts share: the most common word 5-gram picks a
group, what stands in more than half of the group is its boilerplate, and prompts with at least half of that belong to it;
then the same among the rest. They are numbered from the largest, for their words are the customer's.

    slices = name_slices(load_sequences(sequences_dir))      # {"tenant": {"acme": [ids]}, "template": {"template 1": ...}}
    slices = load_slices(run / "split")                      # as the split named them, for every table after it
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset

from outrider.common.files import read_json, write_json
from outrider.data.split.near_duplicates import BOILERPLATE_SHARE, PROMPTS_COUNTED, shingles_of

FILE = "slices.json"
FIELDS = ("tenant", "route", "fidelity")
"""Columns of the table that are slices as they stand."""

LARGEST = 20
"""Most names of a dimension; sequences of the others are one slice, `others`."""

MEMBER_SHARE = 0.5
"""Share of a template's boilerplate that a prompt must hold to belong to it."""

MIN_TEMPLATE_SHARE, MIN_TEMPLATE_PROMPTS = 0.02, 5
"""A wording shared by fewer prompts, as a share and as a number, is no template."""

Slices = dict[str, dict[str, list[str]]]
"""dimension -> name -> sequence ids"""


def name_slices(table: Dataset) -> Slices:
    """Every sequence's slice in every dimension; a dimension's names stand from the largest."""
    ids = table["sequence_id"][:]
    named = {field: [value or "not logged" for value in table[field]] for field in FIELDS}
    named["sampling"] = [
        f"temperature {temperature:g}, top_p {top_p:g}"
        for temperature, top_p in zip(
            _rounded(table["temperature"]), _rounded(table["top_p"]), strict=True
        )
    ]
    named["template"] = name_templates(table["prompt_text"][:])
    return {dimension: _grouped(ids, names) for dimension, names in named.items()}


def write_slices(slices: Slices, split_dir: Path) -> None:
    """Publishes them, readable by their owner only: names of tenants and routes are the customer's."""
    write_json(Path(split_dir) / FILE, slices, private=True)


def load_slices(split_dir: Path) -> Slices:
    """The slices that the split named."""
    return read_json(Path(split_dir) / FILE)


def name_templates(prompts: Sequence[str]) -> list[str]:
    """`template 1`, `template 2`, ... from the most prompts on, or `no template`, for each prompt."""
    chosen = sorted(
        random.Random(0).sample(range(len(prompts)), min(len(prompts), PROMPTS_COUNTED))
    )
    least = max(MIN_TEMPLATE_SHARE * len(chosen), MIN_TEMPLATE_PROMPTS)
    cores = _cores([shingles_of(prompts[index]) for index in chosen], least)
    members = [_closest(shingles_of(prompt), cores) for prompt in prompts]
    order = [
        core for core, _ in Counter(core for core in members if core is not None).most_common()
    ]
    return [
        "no template" if core is None else f"template {order.index(core) + 1}" for core in members
    ]


def _cores(prompts: list[frozenset[int]], least: float) -> list[frozenset[int]]:
    """The boilerplate of each template, found one after the other."""
    counts = Counter(shingle for prompt in prompts for shingle in prompt)
    common = {shingle for shingle, count in counts.items() if count >= least}
    remaining = [prompt & common for prompt in prompts]
    cores: list[frozenset[int]] = []
    while len(cores) < LARGEST:
        counts = Counter(shingle for prompt in remaining for shingle in prompt)
        # The larger hash decides between equally common ones, so that the same prompts give the same templates.
        count, shingle = max(
            ((count, shingle) for shingle, count in counts.items()), default=(0, 0)
        )
        if count < least:
            break
        group = [prompt for prompt in remaining if shingle in prompt]
        shared = Counter(shingle for prompt in group for shingle in prompt)
        core = frozenset(
            shingle for shingle, count in shared.items() if count > BOILERPLATE_SHARE * len(group)
        )
        # Some of the group are members, for on average they hold more than half of the core.
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
    """The table holds float32; a person wrote 0.6."""
    return [round(float(value), 4) for value in values]
