"""Finds the vLLM command in a shell script, a container's command or a manifest.

    variables, words = find_command("serve.sh", "VLLM_USE_V1=1 vllm serve org/model -tp 8")
    variables        # {"VLLM_USE_V1": "1"}
    words            # ["org/model", "-tp", "8"]

Each reader in forms/ gives the words of the commands in one form of file: scripts (shell.py),
manifests and other documents (documents.py), unit files and what `kubectl describe` shows
(units.py), settings of charts and frameworks (settings.py), other programs that start vLLM
(launchers.py), and commands that Python (python_programs.py), Make (make_files.py), Nomad and
Terraform (hcl.py) build. words.py finds the command in them.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from outrider.common.errors import OutriderError
from outrider.common.redaction import redact
from outrider.serving.commands.forms.batch import script_of_batch
from outrider.serving.commands.forms.documents import (
    LONGEST_TEXT,
    PREFILL,
    ROLE,
    documents_in,
    files_of_documents,
    mappings_in,
    words_of_documents,
)
from outrider.serving.commands.forms.gcloud import words_of_gcloud
from outrider.serving.commands.forms.hcl import words_of_hcl
from outrider.serving.commands.forms.launchers import words_of_prefixes
from outrider.serving.commands.forms.llama_swap import words_of_llama_swap
from outrider.serving.commands.forms.make_files import script_of_justfile, script_of_makefile
from outrider.serving.commands.forms.pasted import bracketed_in_log, history_of
from outrider.serving.commands.forms.pm2 import words_of_pm2
from outrider.serving.commands.forms.powershell import script_of_powershell
from outrider.serving.commands.forms.python_programs import (
    calls_in_program,
    mappings_in_program,
    variables_of_program,
    words_of_program,
    words_of_started,
)
from outrider.serving.commands.forms.settings import (
    launcher_keys,
    words_of_config,
    words_of_config_file,
    words_of_log,
    words_of_settings,
)
from outrider.serving.commands.forms.shell import END, shell_words, words_of_script, written_files
from outrider.serving.commands.forms.terminals import as_script, typed_in
from outrider.serving.commands.forms.units import words_of_lists, words_of_units
from outrider.serving.commands.forms.unresolved import OF_KUSTOMIZE, UNRESOLVED, why_unresolved
from outrider.serving.commands.forms.variable_files import unit_files, with_files, with_unit_file
from outrider.serving.commands.forms.variables import IMAGE_USED, VARIABLE, expand_variables
from outrider.serving.commands.words import Command, assign, commands_in
from outrider.serving.vllm_flags import ACROSS_NODES, HARMLESS

SGLANG = "SGLang"

OTHER_ENGINES = {
    SGLANG: "sglang",
    "TensorRT-LLM": r"\btrtllm-serve\b|\btensorrt[-_]llm\b",
    "Hugging Face's text-generation-inference": r"\btext-generation-(?:launcher|inference)\b",
    "LMDeploy": r"\blmdeploy\b",
    "llama.cpp": r"\bllama-server\b|\bllama[.]cpp\b|\bllama_cpp[.]server\b",
    "Ollama": r"\bollama serve\b|\bollama/ollama\b",
}
"""Other engines, and the programs, modules or images that start them."""

STARTED = re.compile(r"Initializing (?:an?|a V1) LLM engine|vLLM API server version")
"""What vLLM logs when it starts, besides its arguments."""

_OF_LOG = re.compile(r"non-default args|args: Namespace\(")
"""Lines of vLLM's log with the arguments."""

HEADLESS = "--headless"
"""The flag of the further nodes of an engine, whose first node has the same command without it."""

OF_TASKS = {"--runner", "--task", "--convert"}
"""Flags that say what a server does."""

CONNECTOR = "--kv-transfer-config"
PRODUCER = "kv_producer"
"""The role of a prefill server in its connector; its decode server is another command."""

CHANGED_BY_KUSTOMIZE = (
    *("patches", "patchesStrategicMerge", "patchesJson6902", "components", "replacements"),
    "transformers",
)
"""Keys of a Kustomization that change the commands of its resources."""

TAG = re.compile(r"(?::[^/:@]*)?(?:@.*)?\Z", re.DOTALL)
"""What follows an image's name: a tag, a digest."""

OF_WORKFLOW = re.compile(r"\$\{\{[ \t]*(?:matrix|env|inputs|vars)\.")
"""An expression of GitHub's workflows."""

OF_PROGRAM = re.compile(r"^import \w(?s:.*)(?:\bvllm serve\b|vllm\.entrypoints)", re.MULTILINE)
"""A Python program that names vLLM's server."""

STRACE_CUT = re.compile(r'\bexecve\([^\n]{0,2000}"\.\.\.')
"""A call with a string that strace has cut."""

NEVER_DRAFTS = {"pooling", "embed", "embedding", "classify", "score", "reward"}
"""Values of these flags with which vLLM generates no text."""

SCRIPT_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::[^{}]*)?\})")
"""The arguments that a script is started with, of which a file knows none: $@, ${@:2}."""

MOST_COMMANDS = 20
"""Commands of a text that are compared."""

BLOCK = re.compile(r"^[ \t]*```[\w-]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
"""A block of code in Markdown."""

EXPORTED = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Names of variables that a program may read. A script's own are often in lower case."""


class NoCommand(OutriderError):
    """A text has no command that starts a server."""


def find_command(source: str, text: str) -> Command:
    """Returns the variables and words of the first vLLM command in `text`.

    Raises an `OutriderError` if there is none, or if a shell variable has no value in `text`.
    """
    variables, words, _ = find_command_and_image(source, text)
    return variables, words


def find_command_and_image(source: str, text: str) -> tuple[dict[str, str], list[str], str]:
    """As `find_command`, with the image of the command's container; empty if it is not named."""
    if len(text) > LONGEST_TEXT:
        text = "\n".join(line for line in text.splitlines() if _OF_LOG.search(line))
        if not 0 < len(text) <= LONGEST_TEXT:
            raise OutriderError(
                f"{source}: more than {LONGEST_TEXT} characters, without vLLM's log line"
                " `non-default args`; give the part that starts the server"
            )
    text = script_of_batch(script_of_powershell(text))
    _check_one_command(source, text)
    text = as_script(text)
    script, files = written_files(text)
    script = with_files(script, files) if files else script
    documents = documents_in(text)
    printed = [one for written in files.values() for one in documents_in(written)]
    _check_built(source, [*documents, *printed])
    _check_preset(source, documents)
    files |= files_of_documents(documents)
    command = _first_command(source, _candidates(script, script, documents))
    for written in files.values():
        unit = _as_written(written, script, files)
        command = command or _first_command(source, _candidates(unit, unit, documents_in(unit)))
    if script != text:
        command = command or _first_command(source, _candidates(text, script, documents))
    if command is not None:
        variables, words = command
        if _never_drafts(words):
            _check_engine(source, text)
            raise OutriderError(
                f"{source}: a command that serves embeddings or the like, which take no drafts;"
                " give the one of the model that writes text"
            )
        words = _with_config_file(words, files)
        exported = {name: value for name, value in variables.items() if EXPORTED.fullmatch(name)}
        checked = _checked(source, text, variables, words)
        return exported, checked, variables.get(IMAGE_USED, "")
    try:
        words = shell_words(script)
    except ValueError as error:
        raise OutriderError(f"{source}: not a shell command ({error})") from None
    _check_engine(source, " ".join(words))
    raise NoCommand(f"{source}: {_why_no_command(text, documents)}")


def _why_no_command(text: str, documents: list[object]) -> str:
    """What a text without a command is, as far as that is known, and what to give instead."""
    if any(isinstance(one, Mapping) and one.get("kind") == "Kustomization" for one in documents):
        return f"a file of Kustomize; give {OF_KUSTOMIZE}"
    if STRACE_CUT.search(text):
        return (
            "strace has cut the command's words; give `strace -s 65535` or, while it runs,"
            " /proc/PID/cmdline"
        )
    if settings := launcher_keys(documents):
        return (
            "settings of another program, with keys that vLLM does not have"
            f" ({', '.join(settings)}): give the command that it starts, as `ps -ef` shows it"
        )
    if STARTED.search(text):
        return (
            "vLLM's log without the line that has its arguments (`non-default args:`, or"
            " `args: Namespace(...)` before 0.9), among the first lines after a start; give this"
            " line, or the command"
        )
    if OF_WORKFLOW.search(text):
        return (
            "a workflow of GitHub, which fills in values, perhaps of several servers; give the"
            " command of one with its values"
        )
    if OF_PROGRAM.search(text):
        return (
            "a program that makes its command while it runs; give the command as `ps -ef` shows it"
        )
    return (
        "no `vllm serve`; give the command that the endpoint runs, or an existing file that"
        " contains it"
    )


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _check_built(source: str, documents: list[object]) -> None:
    """Raises an `OutriderError` if Kustomize changes commands that the text has, too."""
    mappings = [one for one in documents if isinstance(one, Mapping)]
    built = [one for one in mappings if one.get("kind") == "Kustomization"]
    others = [one for one in mappings if one.get("kind") != "Kustomization"]
    images = [image for one in built for image in _listed(one.get("images"))]
    named = {str(image.get("name")) for image in images if isinstance(image, Mapping)}
    used = {TAG.sub("", str(one.get("image"))) for one in mappings_in(others)}
    is_changed = any(one.get(key) for one in built for key in CHANGED_BY_KUSTOMIZE)
    if others and (is_changed or named & used):
        raise OutriderError(
            f"{source}: a file of Kustomize, which changes the command next to it; give"
            f" {OF_KUSTOMIZE}"
        )


def _check_one_command(source: str, text: str) -> None:
    """Raises an `OutriderError` if a text has several commands that somebody chose from.

    They are in blocks of Markdown, in a shell's history, or typed at a terminal.

    All are shown, since the last one need not be the one that runs.
    """
    commands: dict[str, None] = {}
    typed = (command for command, _ in typed_in(text))
    for part in (*BLOCK.findall(text), *history_of(text), *typed):
        for _, words in commands_in(words_of_script(part)):
            if words and HEADLESS not in words:
                commands.setdefault(" ".join(words))
    if len(commands) > 1:
        shown = "; ".join(f"vllm serve {redact(command)[:70]} ..." for command in commands)
        raise OutriderError(
            f"{source}: {len(commands)} different commands ({shown}); give the one that the"
            " endpoint runs"
        )


def _as_written(text: str, script: str, files: Mapping[str, str]) -> str:
    """Returns a file that a script writes with the script's values and the other files' variables.

    As in an unquoted here document, `\\$NAME` and a doubled backslash stay for the file's reader.
    """
    variables: dict[str, str] = {}
    for word in words_of_script(script):
        assign(variables, word)
    parts = re.split(r"\\(?=[$\\`])", text)
    text = "".join(
        part if number == 0 else part[:1] + expand_variables(part[1:], variables)
        for number, part in enumerate([expand_variables(parts[0], variables), *parts[1:]])
    )
    for name in unit_files(text):
        if (content := files.get(name)) is not None:
            text = with_unit_file(text, name, content)
    return text


def _check_preset(source: str, documents: list[object]) -> None:
    """Raises an `OutriderError` if KAITO starts a model by the name of a preset."""
    for mapping in mappings_in(documents):
        if str(mapping.get("apiVersion")).startswith("kaito.sh/"):
            inference = mapping.get("inference")
            preset = inference.get("preset") if isinstance(inference, Mapping) else None
            if isinstance(preset, Mapping):
                raise OutriderError(
                    f"{source}: KAITO starts vLLM with its preset {preset.get('name')}; give a"
                    " `vllm serve MODEL` with the model of this preset on the Hugging Face Hub, and"
                    " with the settings below `vllm:` in its ConfigMap as flags"
                )


def _check_engine(source: str, text: str) -> None:
    """Raises an `OutriderError` that names the engine if `text` starts another than vLLM."""
    for engine, mark in OTHER_ENGINES.items():
        if re.search(mark, text):
            raise OutriderError(
                f"{source}: a command of {engine}, and Outrider's engines run vLLM; give the `vllm"
                " serve` command with the same model and parallelism, or leave it out and set"
                " target.model, serving.engine.tensor_parallel and serving.engine.max_model_len"
                f"{' (docs/how-to/sglang.md)' if engine == SGLANG else ''}"
            )


def _candidates(text: str, script: str, documents: list[object]) -> Iterator[Iterable[list[str]]]:
    """Yields what each reader finds: words that may contain a command.

    `script` is the text without its written files.
    """
    for mapping in mappings_in_program(text):
        yield [words_of_prefixes(json.dumps(mapping))]
    yield [words_of_prefixes(text)]
    if "gcloud" in script:
        yield words_of_gcloud(words_of_script(script))
    yield words_of_llama_swap(documents)
    if "docker build" in text:  # before its blocks, since one block changes what another starts
        yield words_of_units(text)
    yield map(words_of_script, BLOCK.findall(text))
    yield words_of_units(text)
    yield from words_of_documents(documents)
    calls = calls_in_program(text)
    exported = variables_of_program(text)
    for words_of_engines in (words_of_settings, words_of_config):
        yield ([*exported, *words] for words in words_of_engines(calls))
    yield words_of_started(text)
    yield words_of_program(text)
    yield [words_of_hcl(text)]
    yield words_of_lists(text)
    for words in words_of_log(text):  # the last start is the one that runs
        yield [words]
    yield [words_of_script(script_of_makefile(text))]
    yield [words_of_script(script_of_justfile(text))]
    yield words_of_pm2(text)
    yield map(words_of_script, bracketed_in_log(text))
    yield [words_of_script(script)]


def _with_config_file(words: list[str], files: Mapping[str, str]) -> list[str]:
    """Replaces `--config FILE` by the flags of a file that the text contains.

    As in vLLM, flags of the command come later and count; a file on this machine is left to it.
    """
    by_name = {PurePosixPath(path).name: text for path, text in files.items()}
    if "--config" not in words[:-1]:
        return words
    at = words.index("--config")
    text = by_name.get(PurePosixPath(words[at + 1]).name)
    if text is None:
        return words
    rest = words[:at] + words[at + 2 :]
    model = rest[:1] if rest and not rest[0].startswith("-") else []
    return [*model, *words_of_config_file(documents_in(text), model), *rest[len(model) :]]


def _first_command(source: str, readings: Iterable[Iterable[list[str]]]) -> Command | None:
    """The first vLLM command that a reader finds, of an engine's first node if they have one.

    Raises an `OutriderError` if a reader finds commands that generate text with several models.
    """
    headless: Command | None = None
    for candidates in readings:
        commands = _commands_of(candidates)
        first_nodes = [command for command in commands if HEADLESS not in command[1]]
        writing = [command for command in first_nodes if not _never_drafts(command[1])]
        drafting = [command for command in writing if not _only_prefills(*command)]
        chosen = drafting or writing or first_nodes
        if chosen:
            _check_one_model(source, chosen)
            return chosen[0]
        headless = headless or (commands[0] if commands else None)
    return headless


def _commands_of(candidates: Iterable[list[str]]) -> list[Command]:
    """The commands that a reader finds; an error counts only if none is before it."""
    commands: list[Command] = []
    try:
        for candidate in candidates:
            some = itertools.islice(commands_in(candidate), MOST_COMMANDS - len(commands))
            # The script's further words add to its variables.
            commands.extend((dict(variables), words) for variables, words in some)
    except OutriderError:
        if not commands:
            raise
    return commands


def _values_of(words: Sequence[str], flags: Collection[str]) -> Iterator[str]:
    """Yields the value of each of these flags in a command, as `--flag value` or `--flag=value`."""
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in flags:
            yield value if equals else "".join(words[index + 1 : index + 2])


def _never_drafts(words: Sequence[str]) -> bool:
    """Whether a command serves embeddings or the like, which take no drafts."""
    return not NEVER_DRAFTS.isdisjoint(_values_of(words, OF_TASKS))


def _only_prefills(variables: Mapping[str, str], words: Sequence[str]) -> bool:
    """Whether a command's server hands each request to another one after its prompt."""
    if ROLE in variables:
        return variables[ROLE] == PREFILL
    whole = [re.sub(r"\s", "", value) for value in _values_of(words, {CONNECTOR})]
    roles = set(_values_of(words, {f"{CONNECTOR}.kv_role", f"{CONNECTOR}.kv-role"}))
    return PRODUCER in roles or any(f'"kv_role":"{PRODUCER}"' in value for value in whole)


def _check_one_model(source: str, commands: Sequence[Command]) -> None:
    """Raises an `OutriderError` if the commands serve several models; it shows all of them."""
    models: dict[str, None] = {}
    for variables, words in commands:
        model = _model_of(words, variables)
        if model and not UNRESOLVED.search(model):
            models.setdefault(model)
    if len(models) > 1:
        raise OutriderError(
            f"{source}: commands that serve {len(models)} models ({redact(', '.join(models))});"
            " give only the one that serves the target"
        )


def _model_of(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """The model of a command, as vLLM reads it: `--model` or the first word; empty without one."""
    model = next(_values_of(words, {"--model"}), words[0] if words else "")
    model = expand_variables(model, variables).rstrip("/")
    return "" if model.startswith("-") else model


def _flags_of(value: str) -> list[str]:
    """The words of a variable that holds several flags."""
    return [word for word in words_of_script(value) if word != END]


def _expanded(words: list[str], variables: Mapping[str, str]) -> Iterator[str]:
    """The words with their variables replaced; a variable that holds flags becomes several."""
    for word in words:
        if SCRIPT_ARGUMENTS.fullmatch(word):
            continue
        value = expand_variables(word, variables)
        if VARIABLE.fullmatch(word) and value.startswith(("-", " -")):
            yield from _flags_of(value)
        elif not value and word:  # as in a shell, without quotation marks
            continue
        else:
            yield value


def _checked(source: str, text: str, variables: Mapping[str, str], words: list[str]) -> list[str]:
    """Replaces variables that the text sets; refuses others, but in flags of the HTTP server."""
    checked: list[str] = []
    open_words: list[str] = []
    for word in _expanded(words, variables):
        if not UNRESOLVED.search(word):
            checked.append(word)
            continue
        flag, equals, _ = word.partition("=")
        if not equals and checked:
            flag = checked[-1]
        if not flag.startswith("--") or flag[2:].replace("-", "_") not in HARMLESS | ACROSS_NODES:
            open_words.append(word)
        elif not equals:
            checked.pop()
    if open_words:
        raise OutriderError(f"{source}: {why_unresolved(text, open_words)}")
    return checked
