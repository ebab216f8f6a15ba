"""A speculator's files from an attacker: refused in one line that names the file."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.kinds import check_speculator

ROOT = Path(__file__).resolve().parents[2]
HEAD = ROOT / "recipes" / "nano_r1" / "eagle3"

pytestmark = pytest.mark.attack("speculators")


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return shutil.copytree(HEAD, tmp_path / "head")


def with_header(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    """A safetensors file with this header (an object, or its bytes) and length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: str = "F32", shape: Any = (2,), ends: Any = (0, 8)) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": ends}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04\x95.",
        with_header({}, length=2**63),
        with_header({}, length=200_000_000),
        with_header(b"[" * 100_000),
        with_header(b"[]"),
        with_header(b"\xff\xfe"),
        with_header(tensor(ends=(0, 2**62))),
        with_header(tensor(ends=(8, 0))),
        with_header(tensor(ends=(-8, 0))),
        with_header(tensor(shape=(2**62, 4))),
        with_header(tensor(shape=(-1, 2))),
        with_header(tensor(shape=("2",))),
        with_header(tensor(dtype="EVIL")),
        with_header(tensor() | {"y": tensor()["x"]}),
        with_header(tensor(ends=(4, 8), shape=(1,))),
        with_header(tensor(), data=bytes(7)),
    ],
    ids=[
        "empty", "pickle", "length-2^63", "length-200-MB", "deep", "list", "UTF-16", "beyond",
        "backwards", "negative", "overflow", "shape-1", "shape-text", "dtype", "overlap", "gap",
        "short",
    ],
)  # fmt: skip
def test_weights(head: Path, content: bytes) -> None:
    (head / "model.safetensors").write_bytes(content)
    with pytest.raises(OutriderError, match=r"model\.safetensors") as caught:
        tensor_headers(head)
    assert str(caught.value).isprintable()


def weights_elsewhere(head: Path, name: str) -> None:
    """An index whose shard is outside of the folder."""
    index = {"metadata": {}, "weight_map": {"x": name}}
    (head / "model.safetensors").unlink()
    (head / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "", ".", "a\nb", 3, None])
def test_an_index(head: Path, name: Any) -> None:
    weights_elsewhere(head, name)
    with pytest.raises(OutriderError, match=r"head") as caught:
        tensor_headers(head)
    assert str(caught.value).isprintable()


def replaced(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda config: config | changes


CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "list": lambda config: [config],
    "deep": lambda config: b'{"a": ' * 50_000,
    "digits": lambda config: b'{"hidden_size": ' + b"9" * 5_000 + b"}",
    "NULs": lambda config: bytes(1_000),
    "no-heads": replaced(num_attention_heads=0),
    "architectures-3": replaced(architectures=3),
    "code": replaced(architectures=["Evil"], auto_map={"AutoModel": "evil.Model"}),
    "hidden-negative": replaced(hidden_size=-1),
    "hidden-text": replaced(hidden_size="x"),
    "hidden-huge": replaced(hidden_size=2**62),
    "vocabulary-list": replaced(vocab_size=[1]),
    "no-hidden": replaced(hidden_size=None),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config(head: Path, nano_r1: Path, name: str) -> None:
    config = CONFIGS[name](json.loads((head / "config.json").read_text()))
    content = config if isinstance(config, bytes) else json.dumps(config).encode()
    (head / "config.json").write_bytes(content)
    with pytest.raises(OutriderError, match=r"head") as caught:
        check_speculator(head, nano_r1)
        Speculator.from_name(head).features(nano_r1)
    assert str(caught.value).isprintable()
