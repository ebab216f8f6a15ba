"""Nano R1's texts: R1's form, disjoint parts, answers that their checks accept."""

import gzip
import itertools
import json
import random
from typing import get_args

import pytest
from transformers import AutoTokenizer

from outrider.recipes.nano_r1 import tasks
from tools.nano_r1 import math_problems, texts
from tools.nano_r1.chat import EOS, build_tokenizer
from tools.nano_r1.conversations import Part

CHECKS = {
    "resumes": tasks.resume_correct,
    "receipts": tasks.receipt_correct,
    "support": tasks.support_correct,
}
PARTS = get_args(Part)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    numbers = range(200)

    def write(name, rows):
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    write(
        "gsm8k_train.jsonl.gz",
        (
            {
                "question": f"Shop {n} sells {n + 20} cups at $3 each. It paid $7 for them. "
                "What is its gain?",
                "answer": f"<<{n + 20}*3={n * 3 + 60}>> <<{n * 3 + 60}-7={n * 3 + 53}>>"
                f"\n#### {n * 3 + 53}",
            }
            for n in numbers
        ),
    )
    ocr = (
        "BLUE MART\nNO 4, JALAN BESAR,\n50000 IPOH\nDATE : 01/02/2018 10:11\n"
        "PEN\nTOTAL :\n31.00\nTHANK YOU"
    )
    fields = {
        "company": "BLUE MART",
        "date": "01/02/2018",
        "address": "NO 4, JALAN BESAR, 50000 IPOH",
        "total": "31.00",
    }
    write(
        "sroie_receipts.jsonl.gz",
        ({"id": f"{n:03}", "ocr_text": ocr, "fields": fields} for n in numbers),
    )
    write(
        "banking77_train.jsonl.gz",
        ({"text": f"Where is my card number {n}?", "category": "card_arrival"} for n in numbers),
    )
    dialogues = ([f"One latte with {n} sugars", "Is it right?", "Yes, please."] for n in numbers)
    write(
        "taskmaster4_dialogues.jsonl.gz",
        (
            {
                "id": str(n),
                "turns": [
                    {"speaker": speaker, "text": text}
                    for speaker, text in zip(["user", "assistant", "user"], turns, strict=True)
                ],
            }
            for n, turns in enumerate(dialogues)
        ),
    )
    return folder


@pytest.fixture(scope="module")
def tokenizer(corpus, tmp_path_factory):
    """As a server has it: saved and loaded again."""
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(
        text.completion for text in texts.mixture(corpus, 0, "train", 60_000)
    ).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_encode_round_trip(corpus, tokenizer):
    for conversation in texts.mixture(corpus, 1, "train", 20_000):
        ids, start = texts.encode(conversation, tokenizer)
        assert tokenizer.decode(ids[:start]).endswith("<｜Assistant｜><think>\n")
        assert tokenizer.decode(ids[start:]) == conversation.completion + EOS
        assert ids.count(tokenizer.bos_token_id) == 1
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids


@pytest.mark.parametrize("work", texts.WORKS)
def test_same_seed_same_texts_and_parts_disjoint(corpus, work):
    def prompts(part, seed):
        return [repr(text.messages) for text in texts.WORKS[work](corpus, seed, 150, part)]

    assert prompts("train", 1) == prompts("train", 1) != prompts("train", 2)
    for one, other in itertools.combinations(PARTS, 2):
        assert not set(prompts(one, 1)) & set(prompts(other, 1))


@pytest.mark.parametrize("work", CHECKS)
def test_checks_accept_the_answers_and_refuse_another_prompts(corpus, tokenizer, work):
    rows = list(texts.WORKS[work](corpus, 3, 300, "train"))
    prompts = [
        tokenizer.apply_chat_template(row.messages, tokenize=False, add_generation_prompt=True)
        for row in rows
    ]
    assert all(
        CHECKS[work](prompt, row.completion + EOS)
        for prompt, row in zip(prompts, rows, strict=True)
    )
    assert all(CHECKS[work](prompt, row.answer) for prompt, row in zip(prompts, rows, strict=True))
    others = [
        CHECKS[work](prompt, row.completion) for prompt, row in zip(prompts, rows[1:], strict=False)
    ]
    assert sum(others) < 0.5 * len(others)
    assert not CHECKS[work](prompts[0], rows[0].completion[:40])


def test_renumbered_problems_are_computed_again():
    question = "Ada has 12 boxes of 5 pens. She loses 3. How many pens?"
    steps = [("12*5", "60"), ("60-3", "57")]
    found = {
        math_problems.renumbered(question, steps, random.Random(seed))[0] for seed in range(20)
    }
    assert len(found) > 10
    for seed in range(20):
        asked, drawn = math_problems.renumbered(question, steps, random.Random(seed))
        boxes, pens, lost = map(int, math_problems.NUMBER.findall(asked))
        assert drawn == [
            (f"{boxes}*{pens}", str(boxes * pens)),
            (f"{boxes * pens}-{lost}", str(boxes * pens - lost)),
        ]
