"""Near-identical prompts, told apart from prompts that merely share a template.

A prompt is the set of its word 5-grams (fewer words: the whole). 5-grams that stand in more than half of the prompts are
boilerplate, the instructions and headings of a template, and do not count: two résumés under the same long instructions
are as alike as the résumés are. A prompt of boilerplate alone is compared whole. MinHash finds candidates; the Jaccard
similarity of the sets themselves decides.

    seen = SimilarPrompts(train_prompts, similarity=0.9, all_prompts=prompts)
    seen.holds(prompt)
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence

from datasketch import MinHash, MinHashLSH

WORDS = 5
BOILERPLATE_SHARE = 0.5
PROMPTS_COUNTED = 2000
"""Prompts, drawn with a fixed seed, in which boilerplate is counted."""
PERMUTATIONS = 128
CANDIDATE_MARGIN = 0.1
"""MinHash of 128 permutations errs by 0.03 at a similarity of 0.9, so candidates are sought this much below the threshold."""


class SimilarPrompts:
    """The prompts of the training side, asked whether they hold a near-identical one."""

    def __init__(self, prompts: Sequence[str], similarity: float, all_prompts: Sequence[str]):
        self.similarity = similarity
        self.boilerplate = _boilerplate(all_prompts)
        self._sets: list[frozenset[int]] = []
        # A threshold below 0.01 would make every prompt a candidate; the index wants one above 0.
        self._index = MinHashLSH(
            threshold=max(similarity - CANDIDATE_MARGIN, 0.01), num_perm=PERMUTATIONS
        )
        known: set[frozenset[int]] = set()
        for prompt in prompts:
            shingles = self._shingles(prompt)
            if shingles in known:
                continue
            known.add(shingles)
            self._add(shingles, _minhash(shingles))

    def holds(self, prompt: str) -> bool:
        """Whether a prompt of the training side is at least as similar as the threshold says."""
        shingles = self._shingles(prompt)
        return self._holds(shingles, _minhash(shingles))

    def add_new(self, prompt: str) -> bool:
        """Adds a prompt unless one is held that is as similar; whether it was added."""
        shingles = self._shingles(prompt)
        minhash = _minhash(shingles)
        is_new = not self._holds(shingles, minhash)
        if is_new:
            self._add(shingles, minhash)
        return is_new

    def _holds(self, shingles: frozenset[int], minhash: MinHash) -> bool:
        candidates = self._index.query(minhash)
        return any(
            jaccard(shingles, self._sets[candidate]) >= self.similarity for candidate in candidates
        )

    def _add(self, shingles: frozenset[int], minhash: MinHash) -> None:
        self._index.insert(len(self._sets), minhash)
        self._sets.append(shingles)

    def _shingles(self, prompt: str) -> frozenset[int]:
        every = shingles_of(prompt)
        return every - self.boilerplate or every


def shingles_of(prompt: str) -> frozenset[int]:
    """Hashes of the word 5-grams, without regard to case and punctuation."""
    words = re.findall(r"\w+", prompt.lower())
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
    chosen = sorted(
        random.Random(0).sample(range(len(prompts)), min(len(prompts), PROMPTS_COUNTED))
    )
    counts = Counter(shingle for index in chosen for shingle in shingles_of(prompts[index]))
    return frozenset(
        shingle for shingle, count in counts.items() if count > BOILERPLATE_SHARE * len(chosen)
    )


def _minhash(shingles: frozenset[int]) -> MinHash:
    minhash = MinHash(num_perm=PERMUTATIONS, hashfunc=lambda shingle: shingle & 0xFFFFFFFF)
    minhash.update_batch(shingles)
    return minhash
