"""Compares a server's start arguments with those of a release.

    list_differing_arguments(args, release.directory)        # ["max_num_seqs"]

A swap replaces weights only. Speed and acceptance of the release were measured with the arguments
in its bundle.json, so a server that was started with others reports their names.
"""

from argparse import Namespace
from pathlib import Path
from typing import NoReturn

from outrider.serving.allowed import bundle_argument_refusal
from outrider.serving.vllm_arguments import words_of
from outrider.speculators.checkpoints.target_fingerprint import read_bundle


def list_differing_arguments(started: Namespace, release: Path) -> list[str]:
    """Names of the release's arguments that have other values in `started`.

    `started` is what vLLM's parser returned for the server's command. Arguments that a bundle may
    not set are not compared.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:  # by default, ends the process
            raise ValueError(message)

    serve = read_bundle(release / "bundle.json").get("serve")
    arguments = serve.get("arguments") if isinstance(serve, dict) else None
    if not isinstance(arguments, dict):
        return []
    parser = make_arg_parser(Parser())
    names = []
    for name, value in arguments.items():
        if value is None or bundle_argument_refusal(name, value) is not None:
            continue
        try:
            parsed = getattr(parser.parse_args(words_of({name: value})), name)
        except ValueError:  # a value that no server starts with
            names.append(name)
            continue
        if parsed != getattr(started, name, None):
            names.append(name)
    return sorted(names)
