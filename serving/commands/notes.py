"""Lines about what the recipe keeps of a `vllm serve` command, and what it leaves out.

    notes_on({"model": "org/model", "nnodes": 2}, ["nnodes"], Variables({}, [], []), [])
    # ["not in the command, so the recipe's values stay: ...", "left out: --nnodes: ..."]

No value is quoted, but for names of adapters and of the model: others may be secret.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from outrider.serving.vllm_flags import ACROSS_NODES, ADAPTERS, CHANGES_TEXT, FLAGS_OF_VARIABLES
from outrider.serving.vllm_version import WRITTEN_FOR

DERIVED = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Arguments that vLLM derives from the model and the GPU if the command has no flag."""


AUTO = -1
"""`max_model_len` that vLLM is to choose."""

LOG_STATS = "disable_log_stats"

KV_TRANSFER = "kv_transfer_config"

EXPLAINED = CHANGES_TEXT | ACROSS_NODES | {LOG_STATS, KV_TRANSFER}
"""Arguments with a line of their own, unless they are switched off."""


class Variables(NamedTuple):
    """The environment of a command."""

    kept: dict[str, str]
    """Variables that change what the engine computes."""
    unread: list[str]
    """Names of those that vLLM no longer reads."""
    others: list[str]
    """Names of all others."""


def flag_of(name: str) -> str:
    """An argument's flag: `--max-model-len` of `max_model_len`."""
    return "--" + name.replace("_", "-")


def flags_in_words(names: Iterable[str]) -> str:
    """The flags of several arguments, for a sentence."""
    return ", ".join(map(flag_of, names))


def notes_on(
    given: Mapping[str, Any], left_out: list[str], variables: Variables, unknown: list[str]
) -> list[str]:
    """Lines about the arguments `given`, of which those named by `left_out` have no recipe key."""
    notes = []
    if unset := [name for name in DERIVED if name not in given]:
        notes.append(f"not in the command, so the recipe's values stay: {', '.join(unset)}")
    effective = [name for name in left_out if given.get(name) is not False]
    if given.get("max_model_len") == AUTO:
        notes.append(
            "--max-model-len auto: vLLM takes the longest that fits its cache, which its log names;"
            " the recipe's value stays"
        )
    notes += _about_text(effective)
    notes += _about_adapters(given, effective)
    notes += _about_engines(effective)
    notes += _about_transfer(given, effective)
    notes += _about_unread(variables.unread)
    if unknown:
        notes.append(f"unknown to vLLM {WRITTEN_FOR}: {', '.join(unknown)}")
    explained = EXPLAINED.intersection(effective)
    harmless = [flag_of(name) for name in left_out if name not in explained] + variables.others
    if harmless:
        notes.append(f"left out, without effect on what the engine computes: {', '.join(harmless)}")
    return notes


def _about_text(left_out: list[str]) -> Iterator[str]:
    """A line about flags that change the target's text."""
    if changing := [name for name in left_out if name in CHANGES_TEXT - ADAPTERS]:
        yield (
            f"left out, although the target's text depends on it: {flags_in_words(changing)}; log"
            " token ids, which contain rendered prompts"
        )


def _about_adapters(given: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    """A line about adapters, whose responses are not the target's."""
    adapting = [name for name in left_out if name in ADAPTERS]
    if not adapting:
        return
    # Without --served-model-name, requests name the model as the command does.
    served = given.get("served_model_name") or [given["model"]]
    names = served[0] if len(served) == 1 else f"[{','.join(served)}]"
    adapters = ", ".join(module.name for module in given.get("lora_modules") or ())
    yield (
        f"left out: {flags_in_words(adapting)}: only requests that name the base model are answered"
        f" by the target, not those to adapters{f' ({adapters})' if adapters else ''}; if the log"
        f" has both, set traffic.model={names}"
    )


def _about_engines(left_out: list[str]) -> Iterator[str]:
    """Lines about flags that Outrider's engines run without."""
    if across := [name for name in left_out if name in ACROSS_NODES]:
        yield (
            f"left out: {flags_in_words(across)}: they place ranks on nodes, and Outrider's engines"
            " run all ranks on one node"
        )
    if LOG_STATS in left_out:
        yield (
            f"left out: {flag_of(LOG_STATS)}: Outrider's own engines count; remove it from the live"
            " endpoint before `outrider deploy`, `confirm` or `eval --server`, which read its"
            " counts and times"
        )


def _about_transfer(given: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    """A line about an exchange of KV caches, which often divides prefill and decoding."""
    if KV_TRANSFER not in left_out:
        return
    settings = given[KV_TRANSFER]
    connector = settings.get("kv_connector") if isinstance(settings, Mapping) else None
    yield (
        f"left out: {flag_of(KV_TRANSFER)}{f' ({connector})' if connector else ''}: Outrider's"
        " engines prefill and decode by themselves; if other servers prefill for this one,"
        " measured times to first token are not production's"
    )


def _about_unread(variables: list[str]) -> Iterator[str]:
    """A line about variables of other releases, with the flag that replaces each."""
    if not variables:
        return
    replaced = [name for name in variables if name in FLAGS_OF_VARIABLES]
    ways = "".join(f"; instead of {name}, write {FLAGS_OF_VARIABLES[name]}" for name in replaced)
    yield f"left out, since vLLM {WRITTEN_FOR} does not read them: {', '.join(variables)}{ways}"


def note_on_place(model: str, text: str) -> str | None:
    """A line about a model that is at a place of the endpoint only; None for any other.

    `text` is searched for the volume that has the place: `HOST:PLACE`, as Docker and Compose write
    it.
    """
    if "://" in model:
        return f"{model}: a store's address; set target.model to a copy of it on this machine"
    model_path = PurePosixPath(model)
    if not model_path.is_absolute() or Path(model).is_dir():
        return None
    line = f"{model}: a path of the endpoint, and no directory here; set target.model to a copy"
    for parent in (model_path, *model_path.parents[:-1]):
        mounted = re.search(rf"([^\s\"':=,]+):{re.escape(str(parent))}(?![\w/.-])", text)
        if mounted is not None:
            on_host = str(PurePosixPath(mounted[1]) / model_path.relative_to(parent))
            return line if "$" in on_host else f"{line} (its host has it at {on_host})"
    return line
