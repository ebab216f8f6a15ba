"""Finds near-identical prompts, as opposed to prompts that only share a template.

A prompt is represented by its set of word 5-grams, or by its whole text if it has fewer words.
5-grams in more than half of all prompts, or of those of one template (`slices.name_templates`), are
boilerplate (instructions and headings) and are ignored, so that sharing long instructions does not
make two résumés similar. A prompt of boilerplate alone is compared as a whole. MinHash finds
candidates; the Jaccard similarity of the sets decides.

    seen = SimilarPrompts(train_prompts, similarity=0.9, all_prompts=prompts)
    seen.holds(prompt)
"""

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from datasketch import MinHash, MinHashLSH
from numpy.typing import NDArray

from outrider.data.split.slices import name_templates

WORDS = 5
PERMUTATIONS = 128

FEWEST = 20
"""Prompts of a template with boilerplate of its own; in fewer, half may be copies of one prompt."""

UNSPACED = r"\u3040-\u30ff\u3400-\u9fff"
"""Characters of scripts without spaces between words."""


class SimilarPrompts:
    """Index of training prompts that finds near-identical ones."""

    def __init__(self, prompts: Sequence[str], similarity: float, all_prompts: Sequence[str]):
        self.similarity = similarity
        self.boilerplate = _boilerplate(all_prompts)
        self._sets: list[NDArray[np.uint64]] = []  # a seventh of a frozenset's memory
        # The index's threshold is lower, since MinHash with 128 permutations has an error of 0.03
        # at a similarity of 0.9. The threshold must be above 0; at 0.01 all prompts are candidates.
        self._index = MinHashLSH(threshold=max(similarity - 0.1, 0.01), num_perm=PERMUTATIONS)
        for shingles in map(self._shingles, dict.fromkeys(prompts)):
            self._index.insert(len(self._sets), _minhash(shingles))
            self._sets.append(np.fromiter(shingles, np.uint64))

    def holds(self, prompt: str) -> bool:
        """Whether the index has a prompt whose similarity reaches the threshold."""
        shingles = self._shingles(prompt)
        return any(
            jaccard(shingles, frozenset(self._sets[candidate].tolist())) >= self.similarity
            for candidate in self._index.query(_minhash(shingles))
        )

    def _shingles(self, prompt: str) -> frozenset[int]:
        every = shingles_of(prompt)
        return every - self.boilerplate or every


def shingles_of(prompt: str) -> frozenset[int]:
    """Returns hashes of the word 5-grams, ignoring case and punctuation.

    Each Chinese or Japanese character is a word.
    """
    words = re.findall(rf"[{UNSPACED}]|[^\W{UNSPACED}]+", prompt.lower())
    grams = (
        " ".join(words[start : start + WORDS]) for start in range(max(len(words) - WORDS + 1, 1))
    )
    return frozenset(
        int.from_bytes(hashlib.blake2b(gram.encode(), digest_size=8).digest(), "big")
        for gram in grams
    )


def jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    return len(left & right) / len(left | right)


def _boilerplate(prompts: Sequence[str]) -> frozenset[int]:
    """Returns the shingles in over half of a sample of prompts, or of those of a template."""
    rows = random.Random(0).sample(range(len(prompts)), min(len(prompts), 1000))
    chosen = [prompts[row] for row in sorted(rows)]
    templates = name_templates(chosen)
    sizes = {name: size for name, size in Counter(templates).items() if size >= FEWEST}
    sizes["all"] = len(chosen)
    counts: Counter[tuple[str, int]] = Counter()
    for template, prompt in zip(templates, chosen, strict=True):
        counts.update(itertools.product({"all", template} & sizes.keys(), shingles_of(prompt)))
    return frozenset(
        shingle for (group, shingle), count in counts.items() if count > sizes[group] / 2
    )


def _minhash(shingles: frozenset[int]) -> MinHash:
    minhash = MinHash(num_perm=PERMUTATIONS, hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
    minhash.update_batch(shingles)
    return minhash
