"""Flags of the engine, the server and serve.sh come from one source."""

from pathlib import Path

import pytest

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments, serve_arguments


@pytest.fixture
def checkpoint(tmp_path: Path) -> TargetConfig:
    (tmp_path / "config.json").write_text("{}")
    return TargetConfig(model=str(tmp_path))


def test_vllm_parses_the_server_s_flags_to_the_engine_s_arguments(checkpoint: TargetConfig) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    custom = Speculator("mtp", Path("custom"))
    drafting = Drafting(custom, 3, "probabilistic", [(1, 4, 3), (5, 8, 1)])
    settings = (checkpoint, EngineConfig(max_num_seqs=5), drafting)
    model, *words = serve_arguments(*settings)
    parsed = EngineArgs.from_cli_args(
        EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words)
    )
    arguments = engine_arguments(*settings)
    assert model == arguments.pop("model")
    compilation = arguments.pop("compilation_config", {})
    assert {name: getattr(parsed, name) for name in arguments} == arguments
    assert {name: getattr(parsed.compilation_config, name) for name in compilation} == compilation
