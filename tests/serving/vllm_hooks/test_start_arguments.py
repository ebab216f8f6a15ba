"""A server reports which of a release's arguments it was not started with."""

import json

import pytest

from outrider.serving.serve_flags import read_serve_flags
from outrider.serving.vllm_hooks.start_arguments import list_differing_arguments
from tests.serving.exported import engine, write_exported

YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, []),
        ({"max_num_seqs": 64, "hf_overrides": {}}, ["hf_overrides", "max_num_seqs"]),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, ["compilation_config"]),
        ({"dtype": "no_type", "enforce_eager": True}, ["dtype", "enforce_eager"]),
        ({"tokenizer": "not/compared"}, []),
    ],
)
def test_arguments_that_differ_from_the_release_s_are_named(tmp_path, changed, names) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    extra = {"hf_overrides": YARN, "compilation_config": {"cudagraph_mode": "FULL"}}
    bundle = write_exported(tmp_path / "bundle", settings=engine(extra_arguments=extra))
    words = read_serve_flags(bundle, "/mnt/speculator").words
    started = make_arg_parser(FlexibleArgumentParser()).parse_args([*words, "--port", "8001"])
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["serve"]["arguments"] |= changed
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    assert list_differing_arguments(started, bundle) == names
