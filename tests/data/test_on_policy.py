"""Nano R1 tells its own recorded traffic from everything that is not: from the log through an engine to the verdicts.

One log holds groups of one kind each, as tenants: genuine exchanges, answers to other prompts, prompts of another template,
temperatures that were not the sampler's, edited text. The perturbed target is judged without an engine, by transformers.
"""

import gzip
import json
import random

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from outrider.data.evidence import Evidence
from outrider.recipes.nano_r1 import __file__ as nano_r1_package
from outrider.serving.logged_text import Claim, LoggedText, Step, score_step
from outrider.serving.token_scores import COLUMNS

GROUP = 30
"""Exchanges of each kind."""
MIN_ON_POLICY = 0.95


def recorded(workload):
    """The workload's exchanges that have token ids."""
    from pathlib import Path

    with gzip.open(Path(nano_r1_package).parent / "traffic" / f"{workload}.jsonl.gz") as log:
        rows = [json.loads(line) for line in log]
    return [row for row in rows if row["response"]["choices"][0].get("token_ids")]


def genuine(rows):
    return rows


def other_prompts(rows):
    """Each prompt with the answer of the next one."""
    responses = [row["response"]["choices"] for row in rows]
    return [
        {**row, "response": {**row["response"], "choices": choices}}
        for row, choices in zip(rows, responses[1:] + responses[:1], strict=True)
    ]


def other_template(rows):
    """Rendered without the `<think>\\n` with which R1's template lets the answer begin."""
    return [with_prompt(row, row["response"]["prompt_token_ids"][:-2]) for row in rows]


def with_prompt(row, prompt_ids):
    return {**row, "response": {**row["response"], "prompt_token_ids": prompt_ids}}


def logged_at(temperature):
    def changed(rows):
        return [{**row, "request": {**row["request"], "temperature": temperature}} for row in rows]

    return changed


def edited(rows):
    """Two tokens in a hundred are any others."""
    rng = random.Random(0)

    def edit(row):
        choice = row["response"]["choices"][0]
        ids = [rng.randrange(100, 4000) if rng.random() < 0.02 else token for token in choice["token_ids"]]
        return {**row, "response": {**row["response"], "choices": [{**choice, "token_ids": ids}]}}

    return [edit(row) for row in rows]


def shifted_ids(rows):
    """Token ids of a vocabulary that begins one later."""

    def shift(row):
        choice = row["response"]["choices"][0]
        ids = [max(token - 1, 0) for token in choice["token_ids"]]
        return {**row, "response": {**row["response"], "choices": [{**choice, "token_ids": ids}]}}

    return [shift(row) for row in rows]


KINDS = {
    "genuine": genuine,
    "other-prompts": other_prompts,
    "other-template": other_template,
    "logged-hot": logged_at(1.0),
    "logged-cold": logged_at(0.3),
    "edited": edited,
    "shifted-ids": shifted_ids,
}


def quantized(model):
    """Its matrices in four bits, a scale for each row."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            scale = parameter.abs().amax(-1, keepdim=True) / 7
            parameter.copy_((parameter / scale).round() * scale)


def another_revision(model):
    """A few more steps of training, in a random direction."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * 0.05)


def unchanged(model):
    pass


@torch.no_grad()
def evidence_by_transformers(nano_r1, table: Dataset, perturb) -> Evidence:
    """What capture would sum for the table's rows if the target served were another; float32, one sequence at a time."""
    model = AutoModelForCausalLM.from_pretrained(nano_r1, dtype=torch.float32).eval()
    perturb(model)
    sums_SPC = []
    for row in table:
        hidden_TH = model.model(torch.tensor([row["token_ids"]])).last_hidden_state[0]
        claim = Claim(row["completion_start"], row["temperature"], row["top_p"], 1024)
        text = LoggedText(row["token_ids"], claim)
        step = Step(text, 0, 0, len(row["token_ids"]))
        score_step([step], hidden_TH, model.lm_head, model.config.vocab_size, keep=True)
        sums_SPC.append(text.sums_PC.numpy())
    sampling = [np.round(np.array(table[name], np.float64), 4) for name in ("temperature", "top_p")]
    return Evidence(list(COLUMNS), np.array(sums_SPC), *sampling, np.zeros(len(table), bool))
