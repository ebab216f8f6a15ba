"""Converts a production `vllm serve` command into recipe keys.

    command = read_serve_command("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --kv-cache-dtype fp8")
    command.values      # {"target": {"model": ...}, "serving": {"engine": {...}}}
    command.notes       # flags without a recipe key, and recipe values that are kept

vLLM's own parser reads the flags. A flag with a recipe key sets that key. Other arguments that
change what the engine computes go to `serving.engine.extra_arguments` unchanged, and environment
variables that do so go to `serving.engine.environment` (allowed.py). A flag that changes what the
engine computes and has no equal here is an error. All others, such as the port, API key and tool
parsers, are left out; a note lists their names but never their values (vllm_flags.py). A flag that
vLLM does not know is unknown, and a run refuses it.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outrider.common.errors import OutriderError
from outrider.serving.allowed import (
    ARGUMENTS,
    KEYS_OF_ARGUMENTS,
    REASONING_PARSERS,
    UNSERVABLE,
    argument_refusal,
    variable_refusal,
)
from outrider.serving.commands.arguments import arguments_in
from outrider.serving.commands.find import UNRESOLVED, find_command_and_image
from outrider.serving.commands.folders import KUSTOMIZATIONS, command_of_folder
from outrider.serving.commands.forms.batch import CONDITION, is_batch
from outrider.serving.commands.forms.branches import OPTIONS, with_decided_branches
from outrider.serving.commands.forms.settings import FLAGS, OF_EMBEDDINGS
from outrider.serving.commands.forms.unresolved import OF_KUSTOMIZE
from outrider.serving.commands.forms.variable_files import missing_files, text_of_file
from outrider.serving.commands.notes import AUTO, Variables, flag_of, note_on_place, notes_on
from outrider.serving.commands.speculation import check_plugin, read_speculation
from outrider.serving.commands.surroundings import complete_text
from outrider.serving.releases import release_in, release_refusal, release_support
from outrider.serving.vllm_flags import (
    NEUTRAL,
    REFUSED,
    SPECULATIVE,
)
from outrider.serving.vllm_version import WRITTEN_FOR
from outrider.speculators.checkpoints.architectures import verifier_of
from outrider.speculators.checkpoints.model_config import read_config

DEFAULTS_OF_VLLM = {
    "enforce_eager": False,
    "dtype": "auto",
    "gpu_memory_utilization": 0.92,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
}
"""vLLM's defaults that may differ from those of the recipe."""

DTYPES = {"half": "float16", "float": "float32"}
"""vLLM's other names of data types."""


_HAS_DEFAULTS = re.compile(r"\.add_argument\(|\bos\.(?:environ\.get|getenv)\(")
"""What gives a Python program's values other than those of the text."""

COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)

CUT_BY_COMMENT = re.compile(
    r"\\\n(?:[ \t]*#[^\n]*\n){1,50}[ \t]*(?:\\\n[ \t]*)?(?P<flag>--[a-z][\w-]*)"
)
"""A line that a backslash continues, a comment, and a flag: the shell joins line and comment."""

MOST_COMMENTS = 20
MOST_LINES = 60
"""Comments inside commands, and lines before each, that are looked at."""

OF_DOCKERFILE = re.compile(r"^FROM[ \t]", re.MULTILINE)
"""The mark of a Dockerfile, of which lines of comments are left out before lines are joined."""

OF_HELM = re.compile(r"\{\{-?[ \t]*(\.Values\.[\w.]{1,100})")
SHOWN_VALUES = 3

OF_NIX = re.compile(r"^\{[^{}\n]{0,200}\bpkgs\b[^{}\n]{0,200}\}:|\boci-containers\b", re.MULTILINE)
"""Marks of a module of NixOS."""

_SPECULATORS = re.compile(r"[-_.]speculator[-_.](?:eagle|dflash|peagle|p_eagle|mtp|dspark)", re.I)
"""Names of heads in the speculators format, such as RedHatAI/Qwen3-8B-speculator.eagle3."""

LONGEST_PATH = 4096
LONGEST_NAME = 255
"""Characters of a path, and bytes of a name in it, that Linux takes."""

CONDITIONAL = re.compile(r"(^|;)[ \t]*(then|do|esac)\b", re.MULTILINE)
"""Words of a shell's `if`, `for`, `while` and `case`."""


class ServeCommand(NamedTuple):
    """A command as recipe values."""

    values: dict[str, Any]
    """`target`, `serving` and, where known, the endpoint's speculation (`eval`, `speculator`)."""
    notes: list[str]
    """Lines for the user."""
    unknown: list[str]
    """Flags that vLLM does not know."""


def read_serve_command(text: str) -> ServeCommand:
    """Parses `text`, which is a command, or the path of a file with one or of a folder with that.

    Raises:
        OutriderError: if it is not a `vllm serve` command or has an unsupported flag.
    """
    path = _path_of(text)
    if path is not None and path.is_dir():
        file, command = command_of_folder(path, _read_command, _command_in)
        return command._replace(notes=[f"read from {file}", *command.notes])
    return _read_command(text)


def _read_command(text: str) -> ServeCommand:
    source, written = _read(text)
    folder = Path(source).expanduser().absolute().parent if _is_file(source) else None
    return _command_in(source, written, folder)


def _command_in(source: str, written: str, folder: Path | None) -> ServeCommand:
    """Returns the command in a text; `source` names it, and `folder` has the files next to it."""
    text = complete_text(written, folder)
    variables, arguments, image = find_command_and_image(source, text)
    given, unknown = arguments_in(source, _with_placed_config(source, arguments))
    if "model" not in given:
        raise OutriderError(f"{source}: {_why_no_model(text)}")
    given, speculative = _with_speculation(source, given)
    check_plugin(source, speculative, unknown)
    _check_servable(source, given, unknown)
    target, engine, left_out = _sorted_arguments(source, DEFAULTS_OF_VLLM | given)
    environment = _sorted_variables(variables)
    _check_values(source, environment.kept)
    if environment.kept:
        engine["environment"] = environment.kept
    notes = notes_on(given, left_out, environment, unknown)
    notes += _notes_on_script(text, arguments)
    if folder is not None and any((folder / name).is_file() for name in KUSTOMIZATIONS):
        notes.append(
            f"Kustomize's file in {folder}: it may change what this file has; give {OF_KUSTOMIZE}"
        )
    if place := note_on_place(target["model"], text):
        notes.append(place)
    values: dict[str, Any] = {"target": target, "serving": {"engine": engine}}
    # A text that was completed has no comments.
    release = release_in(text, image) or release_in(written, image)
    if release is None and (why := release_refusal(text, image) or release_refusal(written, image)):
        notes.append(f"vLLM in production: {why}")
    elif release is None:
        notes.insert(
            0,
            "vLLM in production: its release is not in the command; set serving.production_release"
            " to what `vllm --version` prints there",
        )
    elif words := release_support(release):
        values["serving"]["production_release"] = release
        notes.append(f"vLLM in production: {words} (docs/how-to/vllm-releases.md)")
    if speculative:
        speculation, description = read_speculation(source, speculative, target["model"])
        values |= speculation
        notes.append(f"speculative_config, the endpoint's current speculator: {description}")
    elif _SPECULATORS.search(target["model"]):
        notes.append(_note_on_head(target["model"]))
    return ServeCommand(values, notes, unknown)


def _why_no_model(text: str) -> str:
    if OF_NIX.search(text):
        return "NixOS's module; give what it makes: `systemctl cat docker-NAME` or podman-NAME"
    names = dict.fromkeys(OF_HELM.findall(text))
    if values := sorted(names, key=lambda name: "model" not in name.lower()):
        return (
            f"a template of Helm, whose values ({', '.join(values[:SHOWN_VALUES])}, ...) are not in"
            " it; give what `helm get manifest RELEASE` or `helm template` prints"
        )
    return "no model; give `vllm serve MODEL ...`"


def _note_on_head(model: str) -> str:
    """A line about a model whose name is that of a head in the speculators format."""
    return (
        f"{model}: by its name a head in the speculators format, and no directory here: vLLM serves"
        " the target that the head's config.json names (speculators_config.verifier.name_or_path)"
        " and drafts with the head; set target.model to that target, speculator.base to a copy of"
        " the head, and eval.current_k to speculators_config.proposal_methods[0].speculative_tokens"
    )


def _notes_on_script(text: str, arguments: Sequence[str]) -> list[str]:
    """Lines about what a script does that is not read; `arguments` are what was read of it."""
    notes = []
    has_conditions = CONDITIONAL.search(with_decided_branches(text)) is not None
    if is_batch(text):
        has_conditions = CONDITION.search(text) is not None
    if has_conditions or OPTIONS.search(text):
        notes.append("conditions and loops of the script are not evaluated: check these values")
    if _HAS_DEFAULTS.search(text):
        notes.append(
            "a program with defaults of arguments or variables, which are taken: check these values"
        )
    flag = _flag_behind_comment(text)
    if flag is not None:
        is_read = any(word.startswith(flag) for word in arguments)
        notes.append(
            f"a comment in the middle of the command ends it in a shell, so {flag} and what follows"
            f" are not passed there, and {'' if is_read else 'not '}read here: check these values"
        )
    if servers := OF_EMBEDDINGS.findall(COMMENT_LINE.sub("", text)):
        notes.append(
            f"a server of embeddings or the like is in the text, too ({len(servers)}), and left out"
        )
    if files := missing_files(text):
        notes.append(f"files that are not here: {', '.join(files)}: check what they set")
    return notes


def _flag_behind_comment(text: str) -> str | None:
    """Returns vLLM's flag after a comment that a shell takes for the end of the command.

    In a Dockerfile, lines of comments are left out before lines are joined. An unknown flag may
    have a secret, which is glued to its name.
    """
    if OF_DOCKERFILE.search(text):
        return None
    for cut in itertools.islice(CUT_BY_COMMENT.finditer(text), MOST_COMMENTS):
        lines = text[: cut.start() + 1].splitlines()[-MOST_LINES:]
        command = list(itertools.takewhile(lambda line: line.endswith("\\"), reversed(lines)))
        is_known = cut["flag"].removeprefix("--").replace("-", "_") in FLAGS
        if is_known and any("vllm" in line for line in command):
            return cut["flag"]
    return None


def _with_speculation(source: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The other arguments, and `speculative_config` with the keys that flags of their own set.

    If the model is a head in the speculators format, its target is the model.
    """
    arguments = dict(given)
    section = arguments.pop("speculative_config", None) or {}
    if not isinstance(section, dict):
        raise OutriderError(f"{source}: --speculative-config: not a JSON object; write it as one")
    speculative = dict(section)
    if read_from_head := _target_of_head(arguments["model"]):
        arguments["model"], of_head = read_from_head
        speculative = of_head | speculative
    for name in SPECULATIVE.keys() & arguments.keys():
        speculative[SPECULATIVE[name]] = arguments.pop(name)
    return arguments, speculative


def _sorted_arguments(
    source: str, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Values of `target` and of `serving.engine`, and names of arguments that are left out."""
    target: dict[str, Any] = {}
    engine: dict[str, Any] = {"extra_arguments": {}}
    left_out: list[str] = []
    for name, value in given.items():
        key = KEYS_OF_ARGUMENTS.get(name)
        if key is not None and key.startswith("target."):
            target[key.removeprefix("target.")] = value
        elif key is not None:
            engine |= _engine_value(key.removeprefix("serving.engine."), value)
        elif name in ARGUMENTS and value not in NEUTRAL.get(name, ()):
            engine["extra_arguments"][name] = value
        else:
            left_out.append(name)
    parser = given.get("reasoning_parser")
    if parser in REASONING_PARSERS:
        # As in vLLM, the flag is a key of this configuration, and decides where a grammar starts.
        settings = engine["extra_arguments"].get("structured_outputs_config") or {}
        engine["extra_arguments"]["structured_outputs_config"] = {
            **settings,
            "reasoning_parser": parser,
        }
        left_out.remove("reasoning_parser")
    return target, engine, left_out


def check_known(command: ServeCommand, ignored: Sequence[str]) -> None:
    """Raises an `OutriderError` for flags that neither vLLM nor `ignored` has."""
    unknown = [flag for flag in command.unknown if flag not in ignored]
    if unknown:
        raise OutriderError(f"--from-serve-command: {_unknown_in_words(unknown)}")


def _unknown_in_words(unknown: Sequence[str]) -> str:
    return (
        f"{', '.join(unknown)}: unknown to vLLM {WRITTEN_FOR}, so its effect is unknown; correct"
        " the spelling, remove it, or, if the engine computes the same without it, set"
        f" serving.ignored_flags=[{','.join(unknown)}]"
    )


def _check_servable(source: str, given: Mapping[str, Any], unknown: Sequence[str]) -> None:
    """Raises one `OutriderError` with all flags without an equal in Outrider's engines.

    It has the unknown flags, too, so that a command is corrected once.
    """
    refused = {name: _why_not_servable(name, given) for name in given}
    lines = [
        f"{source}: {flag_of(name)}: {why}. Change the command, or remove the flag to train for an"
        " engine without it"
        for name, why in refused.items()
        if why is not None
    ]
    if lines and unknown:
        lines.append(f"{source}: {_unknown_in_words(unknown)}")
    if lines:
        raise OutriderError("\n".join(lines))


def _why_not_servable(name: str, given: Mapping[str, Any]) -> str | None:
    """Why Outrider's engines cannot have an argument; None if they can."""
    value = given[name]
    if name in REFUSED and value is not False and value not in NEUTRAL.get(name, ()):
        return REFUSED[name]
    if name == "tokenizer" and value == given["model"]:
        return None
    if name == "tokenizer_revision" and value == given.get("revision", "main"):
        return None
    if name in ARGUMENTS or name in KEYS_OF_ARGUMENTS:
        return argument_refusal(name, value)
    return UNSERVABLE.get(name)


def _sorted_variables(variables: Mapping[str, str]) -> Variables:
    """Sorts variables; of vLLM's own, it reads those of vllm/envs.py only."""
    from vllm.envs import environment_variables

    kept: dict[str, str] = {}
    unread: list[str] = []
    others: list[str] = []
    for name, value in variables.items():
        if variable_refusal(name, value) is not None:
            others.append(name)
        elif name.startswith("VLLM_") and name not in environment_variables:
            unread.append(name)
        else:
            kept[name] = value
    return Variables(kept, unread, others)


def _check_values(source: str, variables: Mapping[str, str]) -> None:
    """Refuses variables that are kept, but whose value the text does not have."""
    if unknown := [name for name, value in variables.items() if UNRESOLVED.search(value)]:
        raise OutriderError(
            f"{source}: {', '.join(unknown)}: set to a variable that has no value here; write its"
            " value"
        )


def _with_placed_config(source: str, words: list[str]) -> list[str]:
    """The words with the place of the file of `--config`.

    A relative path counts from the folder of the file with the command, or from the current one.
    """
    if "--config" not in words[:-1]:
        return words
    value = words.index("--config") + 1
    folders = [Path.cwd()]
    if _is_file(source):
        folders.insert(0, Path(source).expanduser().absolute().parent)
    given = Path(words[value]).expanduser()
    # A path of the container may be that of a file next to its manifest.
    names = dict.fromkeys((str(given), given.name))
    places = [folder / name for folder in folders for name in names]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        tried = " nor ".join(str(place) for place in dict.fromkeys(places))
        raise OutriderError(
            f"{source}: --config {words[value]}: no such file (not {tried}); give a YAML file of"
            " flags that exists here, or write its flags in the command"
        )
    return [*words[:value], str(place), *words[value + 1 :]]


def _target_of_head(model: str) -> tuple[str, dict[str, Any]] | None:
    """The target of a head in the speculators format, and its `speculative_config`.

    `vllm serve HEAD` serves the target that config.json names (`maybe_override_with_speculators`).
    """
    path = Path(model).expanduser() / "config.json"
    if not path.is_file():
        return None
    config = read_config(path)
    verifier = verifier_of(config)
    if not verifier:
        return None
    proposals = config["speculators_config"].get("proposal_methods") or [{}]
    drafts = proposals[0].get("speculative_tokens")
    method = config.get("speculators_model_type")
    return verifier, {"method": method, "model": model, "num_speculative_tokens": drafts}


def _read(text: str) -> tuple[str, str]:
    """Returns the name of a text and the text; a unit's file with its drop-ins."""
    path = _path_of(text)
    if path is not None and path.is_file():
        drop_ins = sorted(path.with_name(f"{path.name}.d").glob("*.conf"))
        parts = [path, *(part for part in drop_ins if part.is_file())]
        return text, "\n".join(map(text_of_file, parts))
    return "--from-serve-command", text


def _is_file(text: str) -> bool:
    path = _path_of(text)
    return path is not None and path.is_file()


def _path_of(text: str) -> Path | None:
    """Returns the text as a path, or None if it is not a valid path."""
    is_long = any(len(name.encode("utf-8", "replace")) > LONGEST_NAME for name in text.split("/"))
    if is_long or len(text) >= LONGEST_PATH or "\n" in text or "\0" in text:
        return None
    try:
        return Path(text).expanduser()
    except RuntimeError:  # the home of a user that does not exist
        return None


def _engine_value(key: str, value: Any) -> dict[str, Any]:
    if key == "mode":
        return {"mode": "eager" if value else "compiled"}
    if key == "kv_cache_gb":
        return {"kv_cache_gb": value / 2**30}
    if key == "dtype":
        return {"dtype": DTYPES.get(value, value)}
    return {} if key == "max_model_len" and value == AUTO else {key: value}
