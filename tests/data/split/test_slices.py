import itertools
import random

from datasets import Dataset

from outrider.data.split.slices import load_slices, name_slices, name_templates, write_slices
from tests.data.split.test_split import words

SCREEN = (
    "You screen résumés against a posting and answer with a verdict and your reasons, one line for "
    "each requirement."
)
SUPPORT = (
    "You are the help desk of a bank. Be kind, be brief, and never promise what is not written in "
    "the rules below."
)


def test_every_sequence_is_in_one_slice_of_each_dimension(tmp_path):
    rng = random.Random(0)
    made = [
        *(("template 1", f"{SCREEN} {words(rng, 80)}") for _ in range(60)),
        *(("template 2", f"{SUPPORT} {words(rng, 30)}") for _ in range(30)),
        *(("no template", words(rng, 40)) for _ in range(15)),
    ]
    rng.shuffle(made)
    assert name_templates([prompt for _, prompt in made]) == [name for name, _ in made]
    table = Dataset.from_dict(
        {
            "sequence_id": [f"0-{index}" for index in range(len(made))],
            "tenant": [f"user-{index % 40}" if index % 3 else "acme" for index in range(len(made))],
            "route": [""] * len(made),
            "fidelity": ["exact" if index % 4 else "retokenized" for index in range(len(made))],
            "temperature": [0.6000000238418579] * len(made),
            "top_p": [0.949999988079071] * len(made),
            "top_k": [0] * len(made),
            "prompt_text": [prompt for _, prompt in made],
        }
    )
    slices = name_slices(table)
    for names in slices.values():
        assert sorted(itertools.chain.from_iterable(names.values())) == sorted(table["sequence_id"])
        sizes = [len(ids) for ids in names.values()]
        assert sizes == sorted(sizes, reverse=True)
    assert list(slices["route"]) == ["not logged"]
    assert list(slices["sampling"]) == ["temperature 0.6, top_p 0.95"]
    assert len(slices["tenant"]) == 21 and {"acme", "others"} <= set(slices["tenant"])
    write_slices(slices, tmp_path)
    assert load_slices(tmp_path) == slices
    assert (tmp_path / "slices.json").stat().st_mode & 0o077 == 0
