"""The hub's HTTP protocol for small files, on 127.0.0.1: what huggingface_hub sends is kept.

Regular (not LFS) commits only: every file is in the commit's body. The real hub stores weights
through LFS or Xet, which this does not speak.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHA = "c" * 40


class Hub(ThreadingHTTPServer):
    """One repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.commits: list[dict[str, Any]] = []
        self.branches: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.cards: list[str] = []
        self.read: list[tuple[str, str]] = []
        """(file, revision) of each download."""
        self.refuse = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, lines: list[dict[str, Any]]) -> None:
        """The operations of one commit."""
        self.commits.append(lines[0]["value"])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                del self.files[value["path"]]
            else:
                assert line["key"] == "file" and value["encoding"] == "base64"
                self.files[value["path"]] = base64.b64decode(value["content"])


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, Content_Type="application/json")

    def do_POST(self) -> None:
        if length := self.headers.get("Content-Length"):
            body = self.rfile.read(int(length))
        else:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        path = self.path.partition("?")[0]
        if self.server.refuse:
            self._json({"error": "no write access"}, 403)
        elif path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._json({"url": f"{self.server.address}/acme/resume"})
        elif path == "/api/validate-yaml":
            self.server.cards.append(json.loads(body)["content"])
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            names = [each["path"] for each in json.loads(body)["files"]]
            regular = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self._json({"files": [{"path": name, **regular} for name in names]})
        elif "/commit/" in path:
            self.server.branches.append(path.rpartition("/commit/")[2])
            self.server.commit([json.loads(line) for line in body.splitlines() if line])
            url = f"{self.server.address}/acme/resume/commit/{SHA}"
            self._json({"success": True, "commitOid": SHA, "commitUrl": url, "hookOutput": ""})
        elif "/branch/" in path:
            self._json({})
        else:
            self._json({"error": path}, 404)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = self.server.files
        if "/tree/" in path:
            self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
                    for name, data in files.items()
                ]
            )
        elif "/revision/" in path or re.fullmatch(r"/api/models/[^/]+/[^/]+", path):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            self._json({"id": "acme/resume", "sha": SHA, "siblings": siblings, "tags": []})
        elif found := re.search(r"/resolve/([^/]+)/(.+)", path):
            self.server.read.append((found[2], found[1]))
            data = files[found[2]]
            self._send(data, ETag=f'"{_oid(data)}"', X_Repo_Commit=SHA)
        else:
            self._json({"error": path}, 404)

    do_HEAD = do_GET


def _oid(data: bytes) -> str:
    """The id that git has for a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def hub() -> Iterator[Hub]:
    """A hub for the time of the block."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
