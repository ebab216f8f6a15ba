"""Stores that do not answer: one message with the URL, for every client."""

import http.server
import socket
import threading

import pytest
from huggingface_hub import HfFileSystem, constants

from outrider.common.errors import OutriderError
from outrider.data.formats.sources import log_files
from outrider.pipeline.stages.sources import log_digest

FIX = "check the address, the network and the credentials .*copy the files here"


@pytest.fixture
def refused(monkeypatch):
    """A local address without a listener, in place of the Hub."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        HfFileSystem.clear_instance_cache()
        yield url
    HfFileSystem.clear_instance_cache()


@pytest.mark.parametrize("ask", [log_files, log_digest])
def test_the_hub_out_of_reach_is_one_message(refused, ask):
    with pytest.raises(
        OutriderError, match=rf"traffic.path = 'hf://datasets/acme/hours.*Connection refused.*{FIX}"
    ):
        ask("hf://datasets/acme/hours")


class Whole(http.server.BaseHTTPRequestHandler):
    """Sends a file of one row."""

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "11")
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(b'{"row": 1}\n')

    def log_message(self, *_):
        pass


def test_names_of_files_have_no_credentials():
    server = http.server.HTTPServer(("127.0.0.1", 0), Whole)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{server.server_port}"
    try:
        one, two = log_files(
            [f"http://user:s3cret@{host}/log.jsonl?part={part}&sig=s3cret" for part in (1, 2)]
        )
        assert one.path != two.path
        assert one.name == two.name == f"http://***@{host}/log.jsonl?***"
        assert "s3cret" not in str(one.identity())
    finally:
        server.shutdown()
        server.server_close()
