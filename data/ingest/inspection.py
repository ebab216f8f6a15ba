"""Inspects a log without a run: summary, checks, split and advice.

It uses the ingest's readers and checks, so a run would give the same result. The result contains no
customer text. Each piece of advice names a finding, its cost and a remedy.

    inspect_log(target_dir, TrafficConfig(path="logs/"), SplitConfig(), scratch)["rejects"]
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text
from tokenizers import Tokenizer

from outrider.common.errors import OutriderError
from outrider.common.inert import printable
from outrider.common.jackknife import ENOUGH_SESSIONS, LEAST_SESSIONS
from outrider.data.config import PrivacyConfig, SplitConfig, TrafficConfig
from outrider.data.exchange import BEYOND_FIRST, HALVES, SAMPLED_OTHERWISE
from outrider.data.ingest.chunks import NOT_LOGGED
from outrider.data.ingest.field_names import naming_advice
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from outrider.data.split.split import BEGAN_EARLIER, PARTS, SEEN, divide_rows, split_summary

SHOWN = 120
"""Number of tokens shown at each end of a prompt and of a completion."""


def inspect_log(
    target_dir: Path,
    traffic: TrafficConfig,
    split: SplitConfig,
    scratch: Path,
    *,
    rows_per_file: int | None = None,
    privacy: PrivacyConfig | None = None,
    hard_labels: bool = True,
    generation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Ingests the log into `scratch`; returns its description, advice and problems."""
    problems: list[str] = []
    summary = ingest(
        target_dir,
        traffic,
        scratch,
        privacy=privacy,
        hard_labels=hard_labels,
        generation=generation,
        rows_per_file=rows_per_file,
        problems=problems,
    )
    predicted: dict[str, Any] | None = None
    if summary["exchanges"]:
        table = load_sequences(scratch / "sequences")
        try:
            compared = len(table) <= 20_000  # more would take minutes and 400 MB
            described = split_summary(table, divide_rows(table, split, drop_seen=compared))
            tokens = sum(described[part]["tokens"] for part in PARTS)
            predicted = {**described, "tokens": tokens, "prompts_compared": compared}
        except OutriderError as error:
            # If only the beginning of the log was read, having too few sessions is expected.
            problems += [] if rows_per_file else [str(error)]
    return {
        **summary,
        "files": len(summary["files"]),
        "reject_examples": _examples(scratch / "rejects.jsonl", summary["rejects"]),
        "split": predicted,
        "problems": problems,
        "wrong_target": wrong_target(summary),
        "advice": advise(summary, predicted, split),
    }


def _examples(rejects: Path, counted: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Returns the place and detail of the first reject for each reason."""
    examples: dict[str, dict[str, str]] = {}
    with rejects.open(encoding="utf-8") as lines:
        for line in lines:
            reject = json.loads(line)
            excused = reject["reason"] in HALVES and reject["reason"] not in counted
            line_reference = f"{reject['file']}:{reject['line']}"
            examples.setdefault(
                BEYOND_FIRST if excused else reject["reason"],
                {"place": line_reference, "detail": reject["detail"]},
            )
    return examples


def wrong_target(ingested: Mapping[str, Any]) -> str | None:
    """Returns the evidence that another model wrote the log, if there is any."""
    counts = ingested["sequences_against_usage"]
    different = counts.get("different", 0)
    counted = sum(counts.values())
    if 2 * different <= counted:
        return None
    completions = ingested["retokenized_against_usage"]
    same_tokens = completions.get("equal", 0) > completions.get("different", 0)
    template = ", or the endpoint uses another chat template" if same_tokens else ""
    models = printable(", ".join(name for name in ingested["models"] if name != NOT_LOGGED))
    return (
        f"this target has probably not written this log (model in the log: {models or NOT_LOGGED}):"
        f" {different:,} of the {counted:,} sequences with a logged token count differ in length"
        f" from it; give the model that wrote the log as target.model{template}"
    )


def advise(
    ingested: Mapping[str, Any], divided: Mapping[str, Any] | None, split: SplitConfig
) -> list[str]:
    """Returns all advice on the summaries of an ingest and its split, except `wrong_target`."""
    return [
        *(_split_advice(divided, split) if divided else []),
        *([] if wrong_target(ingested) else _fidelity_advice(ingested)),
        *_sampling_advice(ingested),
        *naming_advice(ingested),
    ]


def _split_advice(summary: Mapping[str, Any], split: SplitConfig) -> list[str]:
    """Advises on left-out exchanges and on the size of the held-out part."""
    left_out = summary["left_out"]
    exchanges = sum(summary[part]["sequences"] for part in PARTS)
    total = exchanges + sum(left_out.values())
    fixes = {
        (BEGAN_EARLIER,): "conversations last into a later part; if rows lack times or conversation"
        " ids, add them, and log no long-lived id as session_id: sessions without an id end after a"
        f" pause of {split.session_gap_minutes:g} minutes (docs/explanation/traffic.md)",
        tuple(SEEN.values()): "if these prompts are different work under one template, raise"
        f" split.near_duplicate_similarity = {split.near_duplicate_similarity:g}",
    }
    advice = []
    for reasons, fix in fixes.items():
        count = sum(left_out.get(reason, 0) for reason in reasons)
        if count > 0.1 * total:
            reason_text = " and ".join(reason for reason in reasons if left_out.get(reason))
            advice.append(
                f"the split leaves out {count:,} of {total:,} exchanges ({count / total:.0%}) as"
                f" {reason_text}; {fix}"
            )
    sessions = summary["heldout"]["sessions"]
    if sessions < ENOUGH_SESSIONS:
        result = (
            "the verdict will be undecided" if sessions < LEAST_SESSIONS else "intervals are wide"
        )
        least, enough = (
            math.ceil(count / split.heldout_fraction) for count in (LEAST_SESSIONS, ENOUGH_SESSIONS)
        )
        advice.append(
            f"small traffic: {exchanges:,} exchanges, {sessions} held-out sessions; {result}. A"
            f" verdict needs at least {LEAST_SESSIONS} held-out sessions, about {least} in the log"
            f" at split.heldout_fraction = {split.heldout_fraction:g}, and {ENOUGH_SESSIONS}, about"
            f" {enough} in the log, for intervals of the usual width"
        )
    return advice


def _fidelity_advice(summary: Mapping[str, Any]) -> list[str]:
    """Advises on rows without token ids."""
    retokenized = summary["fidelity"].get("retokenized", 0)
    advice = []
    prompts = summary["prompt_tokens_against_usage"]
    different_prompts = prompts.get("different", 0)
    if different_prompts:
        advice.append(
            f"{different_prompts:,} of {sum(prompts.values()):,} prompts without token ids differ"
            " in length from the engine's count: the endpoint uses another chat template, or a"
            " gateway adds text. Put the endpoint's template into the target's directory"
        )
    counts = summary["retokenized_against_usage"]
    different = counts.get("different", 0)
    counted = sum(counts.values())
    if not retokenized or (counted and not different):
        return advice
    differ = (
        f": {different:,} of the {counted:,} with a logged count differ in length from the engine's"
        " count"
        if counted
        else ""
    )
    advice.append(
        f"{retokenized:,} of {summary['exchanges']:,} exchanges have no token ids and are tokenized"
        f" again{differ}. Capture quarantines off-policy sequences (capture.min_on_policy)"
        f"{_remedy(summary['formats'])}"
    )
    return advice


LOSE_IDS = {
    "litellm": "LiteLLM",
    "helicone": "Helicone",
    "langfuse": "Langfuse",
    "azure_llm": "Azure API Management",
    "otel_genai": "OpenTelemetry",
    "message_pairs": "a trace store",
}
"""Formats of producers that do not keep token ids, with their names."""

KEEP_IDS = {
    ("openai_pairs", "openai_joined", "openai_batch"): "send `return_token_ids: true` with every"
    " request, from the client or the gateway; vLLM then returns prompt_token_ids and token_ids in"
    " the response",
    ("vllm_log",): "log requests and responses at a gateway, with `return_token_ids: true`: vLLM's"
    " log has no ids of streams, and in release 0.11 none of a chat's prompt",
    ("sglang",): "start SGLang with --log-requests-level 3",
}
"""How to log token ids, by formats. The other formats are data sets, which were not logged."""


def _remedy(formats: Mapping[str, int]) -> str:
    """Returns how to log token ids, for the formats of a log."""
    text = ""
    for names, remedy in KEEP_IDS.items():
        if formats.keys() & set(names):
            text += f". To log exact tokens, {remedy}"
    losing = [LOSE_IDS[name] for name in formats if name in LOSE_IDS]
    if losing:
        text += (
            f". {' and '.join(losing)} {'does' if len(losing) == 1 else 'do'} not keep token ids:"
            " to have exact tokens, log at vLLM or at an OpenAI-style gateway instead"
            " (docs/how-to/log-formats.md)"
        )
    return text


def _sampling_advice(summary: Mapping[str, Any]) -> list[str]:
    """Advises on responses shaped by a grammar or another parameter."""
    aside = {name: n for name, n in summary["rejects"].items() if name in SAMPLED_OTHERWISE}
    kept = summary.get("constraints", {})
    advice = []
    if total := sum(aside.values()):
        advice.append(
            f"{total:,} of {total + summary['exchanges']:,} exchanges are set aside because of how"
            f" they were sampled ({_listed(aside)}): they are neither trained on nor measured, and"
            " the report covers only the others (docs/how-to/log-formats.md)"
        )
    if refused := {name: n for name, n in kept.items() if name in ("min_p", "other_sampling")}:
        advice.append(
            f"{sum(refused.values()):,} exchanges were sampled with {_listed(refused)}; vLLM 0.32"
            " rejects requests with min_p, logit_bias or custom logits processors when it"
            " speculates, so clients must stop sending these before a speculator is deployed"
        )
    return advice


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def format_mask(tokenizer: Tokenizer, token_ids: Sequence[int], completion_start: int) -> Text:
    """Formats a sequence for checking its mask, with the customer's text.

    No other view prints this text. Prompt and completion have headings, so that they can be told
    apart without colors. Special tokens are visible.
    """
    text = Text()
    for name, ids, style in (
        ("prompt, not trained on", token_ids[:completion_start], "dim"),
        ("completion, trained on", token_ids[completion_start:], "green"),
    ):
        text.append(f"{name} ({len(ids)} tokens)\n", "italic yellow")
        cut = len(ids) - 2 * SHOWN
        ends = [ids[:SHOWN], ids[-SHOWN:]] if cut > 0 else [ids]
        pieces = [tokenizer.decode(list(end), skip_special_tokens=False) for end in ends]
        text.append(printable(f"\n... {cut} tokens ...\n".join(pieces)) + "\n", style)
    return text
