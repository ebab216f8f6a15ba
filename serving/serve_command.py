"""Reads a `vllm serve` command into recipe keys: the engine as production runs it.

    found = read_serve_command("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --kv-cache-dtype fp8")
    found.values        # {"target": {"model": ...}, "serving": {"engine": {...}}}
    found.notes         # what has no key, and what stays as the recipe has it

Flags with a key of the recipe fill it. Other arguments that change what the engine computes go to
`serving.engine.extra_arguments` unchanged, such variables to `serving.engine.environment`
(allowed.py). All others, such as the port, API key and tool parsers, are left out; a note has their
names and never their values.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from outrider.common.errors import OutriderError
from outrider.common.redaction import redacted
from outrider.serving.allowed import (
    ARGUMENTS,
    why_not_argument,
    why_not_value,
    why_not_variable,
)
from outrider.serving.config import KEYS_OF_ARGUMENTS, UNSERVABLE

SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-ep": "enable_expert_parallel",
    "-q": "quantization",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
    "-ac": "attention_config",
    "-dcp": "decode_context_parallel_size",
    "-pcp": "prefill_context_parallel_size",
    "-dpn": "data_parallel_rank",
    "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local",
    "-dpa": "data_parallel_address",
    "-dpp": "data_parallel_rpc_port",
    "-dpb": "data_parallel_backend",
    "-dph": "data_parallel_hybrid_lb",
    "-dpe": "data_parallel_external_lb",
    "-n": "nnodes",
    "-r": "node_rank",
}
"""vLLM's short flags."""

UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
"""Decimal in lower case, binary in upper case: vLLM's `human_readable_int`."""

DEFAULTS_OF_VLLM = {
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "dtype": "auto",
    "gpu_memory_utilization": 0.92,
}
"""What vLLM serves with unless a flag says otherwise, where the recipe's default differs."""

KEPT = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Without a flag vLLM derives these from model and GPU; then the recipe's values stay."""


class ServeCommand(NamedTuple):
    """A command as recipe values."""

    values: dict[str, Any]
    """`target` and `serving`; `eval` and `speculator` if the endpoint speculates."""
    notes: list[str]
    """Lines for the user."""


def read_serve_command(text: str) -> ServeCommand:
    """`text` is a command or the path of a file with one.

    Raises:
        OutriderError: not a `vllm serve` command, or a flag that no engine of Outrider can have.
    """
    source, text = _read(text)
    variables, words = _command(source, text)
    given, left_out = _arguments(source, words)
    if "model" not in given:
        raise OutriderError(f"{source}: no model; give `vllm serve MODEL ...`")
    notes = []
    speculative = given.pop("speculative_config", None)
    for name in [name for name in given if name in UNSERVABLE]:
        raise OutriderError(f"{source}: {_flag(name)}: {UNSERVABLE[name]}; leave it out")
    given = DEFAULTS_OF_VLLM | given
    target: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in given.items():
        key = KEYS_OF_ARGUMENTS.get(name)
        if why_not_value(name, value) if key else why_not_argument(name, value):
            left_out.append(_flag(name))
        elif key is None:
            extra[name] = value
        elif key.startswith("target."):
            target[key.removeprefix("target.")] = value
        else:
            engine |= _engine_value(source, key.removeprefix("serving.engine."), value)
    engine["extra_arguments"] = extra
    environment = {k: v for k, v in variables.items() if why_not_variable(k, v) is None}
    if environment:
        engine["environment"] = environment
    left_out += [name for name in variables if name not in environment]
    kept = [name for name in KEPT if name not in given]
    if kept:
        notes.append(f"not in the command, the recipe's values stay: {', '.join(kept)}")
    if left_out:
        notes.append(f"left out, not part of what the engine computes: {', '.join(left_out)}")
    values: dict[str, Any] = {"target": target, "serving": {"engine": engine}}
    if speculative:
        notes.append(
            f"speculative_config is what the endpoint runs today: {_today(speculative, values)}"
        )
    return ServeCommand(values, notes)


def _read(text: str) -> tuple[str, str]:
    if len(text) < 4096 and "\n" not in text and Path(text).expanduser().is_file():
        return text, Path(text).expanduser().read_text(encoding="utf-8")
    return "--from-serve-command", text


def _command(source: str, text: str) -> tuple[dict[str, str], list[str]]:
    """Environment variables before the command, and the words after `vllm serve`."""
    try:
        words = shlex.split(re.sub(r"\\\r?\n", " ", text), comments=True)
    except ValueError as error:
        raise OutriderError(f"{source}: not a shell command ({error})") from None
    environment = {}
    for index, word in enumerate(words):
        if Path(word).name == "vllm" and words[index + 1 : index + 2] == ["serve"]:
            rest = words[index + 2 :]
            break
        if word.endswith("vllm.entrypoints.openai.api_server"):
            rest = words[index + 1 :]
            break
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            environment[name] = value
    else:
        raise OutriderError(f"{source}: no `vllm serve`; give the command that the endpoint runs")
    for word in rest:
        if re.search(r"\$[({A-Za-z_@*]", word) and word not in ("$@", "$*"):
            raise OutriderError(
                f"{source}: {redacted(word)}: a shell variable; replace it by its value"
            )
    return environment, [word for word in rest if word not in ("$@", "$*")]


def _arguments(source: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The engine's arguments by name, and all other flags."""
    names = ARGUMENTS | KEYS_OF_ARGUMENTS.keys() | UNSERVABLE.keys()
    given: dict[str, Any] = {}
    left_out: list[str] = []
    remaining = list(words)
    if remaining and not remaining[0].startswith("-"):
        given["model"] = remaining.pop(0)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("-"):
            raise OutriderError(f"{source}: {redacted(word)}: neither a flag nor a flag's value")
        flag, equals, text = word.partition("=")
        values = [text] if equals else []
        while not equals and remaining and not _is_flag(remaining[0]):
            values.append(remaining.pop(0))
        flag, dot, path = flag.partition(".")
        name = SHORT.get(flag, flag.lstrip("-").replace("-", "_"))
        negated = name.startswith("no_") and name.removeprefix("no_") in names
        name = name.removeprefix("no_") if negated else name
        if name not in names:
            left_out.append(flag)
            continue
        value = not negated if not values else _value(name, values)
        if not dot:
            given[name] = value
            continue
        section = given.setdefault(name, {})
        for part in path.split(".")[:-1]:
            section = section.setdefault(part, {})
        section[path.split(".")[-1]] = value
    return given, left_out


def _is_flag(word: str) -> bool:
    return bool(re.match(r"-{1,2}[A-Za-z]", word))


def _value(name: str, words: list[str]) -> Any:
    if len(words) > 1:
        return [_value(name, [word]) for word in words]
    (word,) = words
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", word):
        number, unit = match.groups()
        power = UNITS[unit] if unit.islower() else 1024 ** ("kmgt".index(unit.lower()) + 1)
        return int(float(number) * power)
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def _engine_value(source: str, key: str, value: Any) -> dict[str, Any]:
    if key == "mode":
        return {"mode": "eager" if value else "compiled"}
    if key == "kv_cache_gb":
        return {"kv_cache_gb": value / 2**30}
    if key == "max_model_len" and value in ("auto", -1):
        raise OutriderError(f"{source}: --max-model-len {value}: give the number of tokens")
    return {key: value}


def _today(speculative: Any, values: dict[str, Any]) -> str:
    """Puts today's speculator into `values`; returns it in words."""
    if not isinstance(speculative, dict):
        raise OutriderError(f"--speculative-config {speculative!r}: not a JSON object")
    method, k = speculative.get("method"), speculative.get("num_speculative_tokens")
    words = f"{method or 'its own speculator'}, {k} drafts a step"
    if isinstance(k, int):
        values["eval"] = {"current_k": k}
    model = speculative.get("model")
    if model and model != values["target"]["model"]:
        words += f", {model}"
        if Path(model).expanduser().is_dir():
            values["speculator"] = {"base": model}
        else:
            words += " (no directory here: name a copy of it with speculator.base)"
    return words


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
