"""The load generator's own process, with a small server that streams without an engine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from outrider.serving.client import Sampling
from outrider.serving.config import TargetConfig
from outrider.serving.load_generator import LoadGenerator

TOKENS = 5
COUNTERS = (
    "generation_tokens_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)


class Streaming(BaseHTTPRequestHandler):
    """Answers every completion with TOKENS pieces, and /metrics with zeros."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        lines = [f'vllm:{name}{{model_name="m"}} 0.0\n' for name in COUNTERS]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(lines).encode())

    watched: ClassVar[Path | None] = None
    written: ClassVar[list[bytes]] = []
    """Contents of the files below `watched` while requests are answered."""

    def do_POST(self) -> None:
        if self.watched:
            paths = self.watched.rglob("*")
            files = [path for path in paths if path.is_file() and not path.is_symlink()]
            self.written.extend(path.read_bytes() for path in files)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        usage = {"completion_tokens": TOKENS, "prompt_tokens": 3}
        pieces = [{"choices": [{"index": 0, "text": "a"}]}] * TOKENS
        for event in [*pieces, {"choices": [], "usage": usage}]:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Streaming) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_blocks_take_no_memory(url: str, tmp_path: Path) -> None:
    """vLLM loads and freezes a tokenizer for each: 1.5 MB here, 48 MB with 132,000 tokens."""
    sizes = []
    with LoadGenerator(TargetConfig(), tmp_path / "load.log") as load:
        process = psutil.Process(load._child.process.pid)
        for _ in range(14):
            block = load.run_block(url, ["Hi"] * 2, 1, Sampling(), max_tokens=TOKENS)
            assert block.output_tokens == 2 * TOKENS
            sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[3] < 5e6


def test_no_prompt_is_written_to_a_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Streaming, "watched", tmp_path)
    with LoadGenerator(TargetConfig(), tmp_path / "load.log") as load:
        load.run_block(url, ["Hi, my name is Ada"] * 2, 1, Sampling(), max_tokens=TOKENS)
    assert Streaming.written
    assert not any(b"Ada" in content for content in Streaming.written)
    assert [path.name for path in tmp_path.iterdir()] == ["load.log"]
