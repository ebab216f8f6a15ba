"""One engine, one server with the base speculator and one load generator for a process's tests.

Their target is the short one (tests/short_r1/).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from outrider.serving.admin.live_flags import live_environment
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, open_engine
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from tests.live.faults import FAULT_EXTENSION

QUESTIONS = [
    "Tom has 3 boxes with 12 pencils each. He gives 7 away. How many are left?",
    "I would like to return the shoes that I ordered last week.",
    "Sara reads 24 pages a day. How many pages does she read in 5 days?",
    "My card payment was declined. What should I do?",
    "A farmer has 48 eggs and packs 6 in a box. How many boxes does he need?",
    "Can I order a large pizza with extra cheese?",
    "Extract the total from this receipt: COFFEE 3.50 CAKE 4.00 TOTAL 7.50",
    "There are 15 birds. 6 fly away and 4 come back. How many are there now?",
]


@pytest.fixture(scope="session")
def k() -> int:
    """Drafted tokens per step of the server."""
    return 3


@pytest.fixture(scope="session")
def target(short_r1: Path) -> TargetConfig:
    return TargetConfig(model=str(short_r1))


@pytest.fixture(scope="session")
def prompt_texts(nano_r1: Path) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        for text in QUESTIONS
    ]


@pytest.fixture(scope="session")
def prompts(nano_r1: Path, prompt_texts: list[str]) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    return [tokenizer(text, add_special_tokens=False).input_ids for text in prompt_texts]


@pytest.fixture(scope="session")
def engine(target: TargetConfig) -> Iterator[Engine]:
    """The recipes' flags with steps of 96 tokens.

    So a step contains prompts of several requests, and parts of prompts.
    """
    with open_engine(target, EngineConfig(max_num_batched_tokens=96, kv_cache_gb=0.25)) as engine:
        yield engine


@pytest.fixture(scope="session")
def release_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder below which the server accepts releases."""
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="session")
def server(
    target: TargetConfig, k: int, release_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """In development mode, with the admin route, and with faults for the tests of it."""
    folder = tmp_path_factory.mktemp("server")
    drafting = Drafting(Speculator.from_name(target.directory()), k)
    engine = EngineConfig(kv_cache_gb=0.25)
    server = Server(target, engine, drafting, log_path=folder / "server.log")
    server._environment |= live_environment(
        [release_root], f"unix:{folder}/admin.sock", folder / "admin.token"
    )
    server.command += ["--worker-extension-cls", FAULT_EXTENSION]
    # Servers import nothing from the current folder (-P).
    server._environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    with server:
        yield server


@pytest.fixture(scope="session")
def load(target: TargetConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadGenerator]:
    """The load generator's process, which imports vLLM for 10 s of a core."""
    with LoadGenerator(target, tmp_path_factory.mktemp("load") / "load.log") as load:
        yield load
