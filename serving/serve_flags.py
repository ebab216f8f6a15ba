"""Flags and environment of a bundle's serve.sh, for a server in a container."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outrider.common.errors import OutriderError

NOT_THE_ENGINE = ("--host", "--port", "--served-model-name", "--revision")
"""Flags that the manifest sets itself or that the download has answered."""

LOCAL = ("VLLM_LOGGING_STREAM",)
"""Variables that have a meaning only where Outrider starts the server."""

_EXPORT = re.compile(r"^export ([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)


class ServeFlags(NamedTuple):
    """What a container is started with."""

    groups: tuple[tuple[str, ...], ...]
    """Each flag with its values."""
    environment: dict[str, str]

    @property
    def words(self) -> list[str]:
        """The arguments after `vllm serve MODEL`."""
        return [word for group in self.groups for word in group]

    @property
    def gpus(self) -> int:
        """GPUs of one server, by its parallel sizes."""
        count = 1
        for name, *values in self.groups:
            if re.fullmatch(r"--(tensor|pipeline|data)-parallel-size", name):
                count *= int(values[0])
        return count

    def replacing(self, speculative: dict[str, Any] | None) -> "ServeFlags":
        """With other speculation; None: without."""
        groups = [group for group in self.groups if group[0] != "--speculative-config"]
        if speculative is not None:
            groups.append(("--speculative-config", json.dumps(speculative)))
        return ServeFlags(tuple(groups), self.environment)

    @property
    def speculative(self) -> dict[str, Any]:
        """The value of --speculative-config."""
        for name, *values in self.groups:
            if name == "--speculative-config":
                found: dict[str, Any] = json.loads(values[0])
                return found
        return {}


def read_serve_flags(bundle: Path, speculator: str) -> ServeFlags:
    """The flags of BUNDLE/serve.sh, with the bundle at `speculator` inside of the container."""
    path = Path(bundle) / "serve.sh"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OutriderError(f"{path}: cannot be read ({error.strerror}); export again") from None
    before, found, command = text.partition('serve "$target" \\\n')
    words = shlex.split(command.replace("\\\n", " ")) if found else []
    if not words or words[-1] != "$@":
        raise OutriderError(f"{path}: not a serve.sh that Outrider wrote; export again")
    groups: list[list[str]] = []
    for word in words[:-1]:
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word.replace("$here", speculator))
    environment = {
        name: shlex.split(value)[0]
        for name, value in _EXPORT.findall(before)
        if name not in LOCAL and "$" not in value
    }
    kept = tuple(tuple(group) for group in groups if group[0] not in NOT_THE_ENGINE)
    return ServeFlags(kept, environment)


def without_quotes(flags: Sequence[Sequence[str]]) -> str:
    """Flags as one text that keeps its words when a shell splits it.

    KServe's templates expand VLLM_ADDITIONAL_ARGS, some with `eval` and some without, so a value
    must have neither spaces nor quotes. JSON objects become vLLM's dotted flags
    (`--speculative-config.method=...`, `--compilation-config.custom_ops+=all,none`).
    """
    words: list[str] = []
    for name, *values in flags:
        if len(values) == 1 and values[0].startswith("{"):
            for key, value in _leaves(json.loads(values[0])):
                words.append(f"{name}.{key}={value}")
        else:
            words += [name, *values]
    for word in words:
        if shlex.quote(word) != word and not re.fullmatch(r"[\w\[\],.:/=+-]+", word):
            raise OutriderError(
                f"serve.sh: the value {word!r} cannot be passed through VLLM_ADDITIONAL_ARGS; "
                "set it in an LLMInferenceServiceConfig of the cluster"
            )
    return " ".join(words)


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted keys and values without quotes."""
    found: list[tuple[str, str]] = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            found += _leaves(inner, f"{prefix}{key}.")
        elif isinstance(inner, list) and inner and all(isinstance(each, str) for each in inner):
            found.append((f"{prefix}{key}+", ",".join(inner)))
        elif isinstance(inner, str):
            found.append((f"{prefix}{key}", inner))
        else:
            found.append((f"{prefix}{key}", json.dumps(inner, separators=(",", ":"))))
    return found
