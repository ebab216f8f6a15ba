import random

from outrider.data.split.near_duplicates import SimilarPrompts, jaccard, shingles_of
from tests.data.logs import screenings

RUBRIC = " ".join(
    f"rule{index} asks for evidence of item{index} in the document." for index in range(120)
)


def resume(index):
    rng = random.Random(index)
    return " ".join(f"fact{rng.randrange(10**6)}" for _ in range(40))


def test_resumes_under_one_long_rubric_are_not_identical():
    prompts = [f"{RUBRIC}\n{resume(index)}" for index in range(20)]
    raw = jaccard(shingles_of(prompts[0]), shingles_of(prompts[1]))
    assert raw > 0.85  # what plain MinHash would see
    seen = SimilarPrompts(prompts[:10], 0.8, prompts)
    assert not any(seen.holds(prompt) for prompt in prompts[10:])
    assert all(seen.holds(prompt) for prompt in prompts[:10])


def test_instructions_of_three_routes_are_boilerplate_too():
    prompts = [
        f"route{index % 3} {RUBRIC.replace('rule', f'rule{index % 3}x')}\n{resume(index)}"
        for index in range(90)
    ]
    seen = SimilarPrompts(prompts[:45], 0.8, prompts)
    assert not any(seen.holds(prompt) for prompt in prompts[45:])
    assert all(seen.holds(prompt.replace("item7 ", "item8 ")) for prompt in prompts[:45])


def test_agrees_with_the_exact_similarity_of_every_pair():
    prompts = [messages[-1]["content"] for messages, _, _ in screenings(60)]
    edited = [
        prompt.replace("years", "yrs", index % 3) for index, prompt in enumerate(prompts[:30])
    ]
    seen = SimilarPrompts(prompts, 0.9, prompts + edited)
    shingles = [shingles_of(prompt) - seen.boilerplate for prompt in prompts]
    for prompt in edited:
        prompt_shingles = shingles_of(prompt) - seen.boilerplate
        assert seen.holds(prompt) == any(
            jaccard(prompt_shingles, known) >= 0.9 for known in shingles
        )
