"""HTTP to a server on this machine, over TCP or a Unix socket.

Address("unix:/run/outrider/a.sock").call("GET", "/health")     # (200, {}, seconds)
Address("http://127.0.0.1:8000").call("POST", "/v1/completions", {...}, api_key="...")
"""

import http.client
import json
import socket
import urllib.parse
from typing import Any

from outrider.common.errors import OutriderError

UNIX = "unix:"


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Address:
    """`unix:/path` or `http://HOST:PORT`."""

    def __init__(self, text: str) -> None:
        """An `OutriderError` for anything else."""
        split = urllib.parse.urlsplit(text)
        absolute = text.startswith(UNIX + "/")
        if not absolute and (split.scheme != "http" or not split.netloc or split.path.strip("/")):
            raise OutriderError(
                f"address {text!r}: expected unix:/absolute/path or http://127.0.0.1:PORT"
            )
        self.text, self._netloc = text, split.netloc

    def __str__(self) -> str:
        return self.text

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """An unopened connection."""
        if self.text.startswith(UNIX):
            return UnixConnection(self.text.removeprefix(UNIX), timeout_s)
        return http.client.HTTPConnection(self._netloc, timeout=timeout_s)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        api_key: str | None = None,
        timeout_s: float = 600,
    ) -> tuple[int, Any]:
        """The status, and the answer: from JSON where it is JSON, else text.

        `OSError` or `http.client.HTTPException` where there is no answer.
        """
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        connection = self.connect(timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text
