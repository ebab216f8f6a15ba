"""Arguments in the words of a `vllm serve` command, as vLLM's own parser reads them.

given, unknown = arguments_in("serve.sh", ["org/model", "-tp", "8", "--newer-flag"])
given        # {"model": "org/model", "tensor_parallel_size": 8}
unknown      # ["--newer-flag"]
"""

import argparse
import difflib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import yaml

from outrider.common.errors import OutriderError
from outrider.common.redaction import looks_secret, redact
from outrider.serving.commands.notes import flag_of
from outrider.serving.vllm_flags import KNOWN, SWITCHES
from outrider.serving.vllm_version import WRITTEN_FOR

_FLAG = re.compile(r"--[A-Za-z][\w-]*")

MOST_MISSPELLED = 3
"""Flags that a message names."""

OF_COMPILATION = re.compile(r"^-O\.")
"""How vLLM before 0.13 abbreviated --compilation-config.KEY; vLLM 0.32 has -O for a level only."""


def arguments_in(source: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the given arguments, keyed by vLLM's names, and the unknown flags.

    Flags of earlier releases are read as well. JSON objects become dictionaries, not vLLM's
    classes.
    """
    from vllm.entrypoints.launchers.cli_args import LoRAParserAction, make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    unknown: list[str] = []
    of_earlier_releases: set[str] = set()

    class Parser(FlexibleArgumentParser):
        def parse_known_args(self, *args: Any) -> Any:  # type: ignore[override]  # overloads
            namespace, extras = super().parse_known_args(*args)
            options = [option for action in self._actions for option in action.option_strings]
            unknown.extend(_without_secret(flag, options) for flag in _flags(extras))
            return namespace, []

        def _get_option_tuples(self, option_string: str) -> Any:
            # Abbreviations stand for flags of vLLM 0.32, as there.
            matches = super()._get_option_tuples(option_string)
            return [match for match in matches if match[0].dest not in of_earlier_releases]

        def error(self, message: str) -> NoReturn:
            names = ", ".join(_flags(message.split())) or "a value"  # values may be secret
            misspelled = _misspelled(words, self)
            raise OutriderError(
                f"{source}: vLLM {WRITTEN_FOR} does not accept {names}, or not its value"
                + (f"; it has no {', '.join(misspelled)}" if misspelled else "")
            )

    parser = make_arg_parser(Parser())
    of_earlier_releases |= KNOWN - {action.dest for action in parser._actions}
    for name in of_earlier_releases:
        if name in SWITCHES:
            parser.add_argument(flag_of(name), action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag_of(name))
    words = [OF_COMPILATION.sub("--compilation-config.", word) for word in words]
    words = _without_values_of_switches(words, parser)
    _check_end(source, words, parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        # The action of --lora-modules reads its words itself, JSON or not.
        if action.nargs != 0 and not isinstance(action, LoRAParserAction):
            action.type = _json_or(action.type or str)
    try:
        given = vars(parser.parse_args(words))
    except (OSError, AttributeError, AssertionError, ValueError, yaml.YAMLError) as error:
        # vLLM raises these for the file of --config; its other errors come through `error`.
        raise OutriderError(
            f"{source}: vLLM {WRITTEN_FOR} cannot read the command or the file of --config"
            f" ({type(error).__name__}); give a YAML file of flags that exists here, or write its"
            " flags in the command"
        ) from None
    if "model_tag" in given:
        positional = given.pop("model_tag")
        _check_one_model(source, words, positional, given.get("model", positional))
        given["model"] = positional
    return given, unknown


def _check_one_model(source: str, words: Sequence[str], positional: str, flag: str) -> None:
    """Raises an `OutriderError` if the first word and `--model` are different models.

    A later word may be the value of a flag that the parser does not have. The first word counts
    before `model` in the file of --config (vLLM's argparse_utils.py, `_pull_args_from_config`).
    """
    is_typed = any(word.partition("=")[0] == "--model" for word in words)
    if is_typed and flag != positional == words[0]:
        raise OutriderError(
            f"{source}: two models, {redact(positional)} and --model {redact(flag)}, with which"
            " vLLM does not start; give the one that the endpoint serves"
        )


def _check_end(source: str, words: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raises an `OutriderError` if the last word is a flag, or begins one, and lacks its value."""
    last = words[-1].replace("_", "-") if words else ""
    if not last.startswith("--") or "=" in last or "." in last:
        return
    begun = {
        option: action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith(last)
    }
    possible = [begun[last]] if last in begun else list(begun.values())
    if possible and all(action.nargs in (None, "+") for action in possible):
        raise OutriderError(
            f"{source}: the command ends in {last}, a flag without its value: give the value, or,"
            " if the command is cut, all of it (`ps -ww -o args= -p PID` shows a process's)"
        )


def _misspelled(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns flags that the parser does not have, with the nearest ones that it has.

    A word that begins with a flag may go on with a secret, and is none of them.
    """
    options = {option for action in parser._actions for option in action.option_strings}
    longest = [option for option in options if option.startswith("--")]
    listed: list[str] = []
    for word in words:
        flag = _FLAG.match(word.replace("_", "-"))
        if flag is None or len(listed) == MOST_MISSPELLED:
            continue
        if any(option.startswith(flag[0]) or flag[0].startswith(option) for option in longest):
            continue
        near = difflib.get_close_matches(flag[0], longest, n=1)
        listed.append(f"{flag[0]} ({near[0]}?)" if near else flag[0])
    return listed


def _without_values_of_switches(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Writes `--flag=False` and `--flag False` as `--no-flag`, and True as the flag alone.

    What is off without its flag, such as --disable-log-stats, has no `--no-flag`.
    vLLM before 0.9 read them so (`StoreBoolean`), as did YAML files of launchers.
    """
    switches = {
        option
        for action in parser._actions
        if action.nargs == 0 and not isinstance(action, argparse._HelpAction)
        for option in action.option_strings
    }
    kept: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag not in switches and f"--{flag.removeprefix('--no-')}" in switches:
            continue  # False in a program or file, for a flag without an opposite
        before = kept[-1].replace("_", "-") if kept else ""
        if not equals and before in switches:
            flag = before
            value = word
        truth = value.lower()
        if flag not in switches or truth not in ("true", "false"):
            kept.append(word)
            continue
        if not equals:
            kept.pop()
        opposite = f"--no-{flag.removeprefix('--')}"
        if truth == "true":
            kept.append(flag)
        elif opposite in switches:
            kept.append(opposite)
    return kept


def _without_secret(flag: str, options: Sequence[str]) -> str:
    """Returns `--api-key` of `--api-keysk-1`: what is glued to a secret's flag is the secret."""
    secrets = (option for option in options if looks_secret(option) and flag.startswith(option))
    return next(secrets, flag)


def _flags(words: Sequence[str]) -> list[str]:
    """Returns the names of the flags among `words`."""
    matches = (re.match(r"--?[A-Za-z][\w.-]*", word) for word in words)
    return [match[0] for match in matches if match]


def _json_or(convert: Any) -> Callable[[str], Any]:
    def convert_or_load(text: str) -> Any:
        is_object = text.startswith("{") and not text.startswith("{{")
        return json.loads(text) if is_object else convert(text)

    return convert_or_load
