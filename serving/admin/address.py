"""Addresses of HTTP servers: a Unix socket or a TCP port.

Address.parse("unix:/run/vllm.sock").connect(timeout_s=5).request("GET", "/health")
"""

import contextlib
import http.client
import json
import re
import socket
from dataclasses import dataclass
from typing import Any

LONGEST_SOCKET_PATH = 107
"""Maximum length of a Unix socket path on Linux, in bytes (sun_path without NUL, unix(7))."""


@dataclass(frozen=True)
class Address:
    """Where a server listens: `path` of a Unix socket, or `host` and `port`."""

    path: str | None = None
    host: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses `unix:PATH`, `http://HOST:PORT` or `HOST:PORT`; raises `ValueError` otherwise."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path or "\0" in path:
                raise ValueError("no path after `unix:`; write unix:/run/vllm.sock")
            if (length := len(path.encode())) > LONGEST_SOCKET_PATH:
                raise ValueError(
                    f"the path has {length} bytes, but a Unix socket's path has at most"
                    f" {LONGEST_SOCKET_PATH}; give a shorter path"
                )
            return cls(path=path)
        if text.startswith("https://"):
            raise ValueError("https is not supported; write http://HOST:PORT or unix:/PATH")
        form = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})"
        match = re.fullmatch(form, text.removeprefix("http://").removesuffix("/"))
        if not match or int(match[2]) > 65535:
            raise ValueError("not an address; write unix:/run/vllm.sock or http://127.0.0.1:8000")
        return cls(host=match[1].strip("[]"), port=int(match[2]))

    @classmethod
    def parse_socket(cls, text: str) -> "Address":
        """Like `parse`, but raises a `ValueError` unless it is a Unix socket.

        The admin token is sent there. On a port, even of the loopback interface, any user of the
        machine can listen before the server does, and receive it.
        """
        address = cls.parse(text)
        if address.path is None:
            raise ValueError(
                "any user of the machine can listen on a port and receive the admin token; give a"
                " Unix socket, for example unix:/run/vllm.admin.sock (a replica on another"
                " machine: ssh -L /run/b.admin.sock:/run/vllm.admin.sock HOST)"
            )
        return address

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Returns a connection for one request."""
        host = self.host or "localhost"
        connection = http.client.HTTPConnection(host, self.port, timeout=timeout_s)
        if self.path is not None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout_s)
            connection.sock.connect(self.path)
            connection.auto_open = 0  # a second request would connect to localhost's port 80
        return connection

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        api_key: str | None = None,
        timeout_s: float = 600,
    ) -> tuple[int, Any]:
        """Sends a request; returns the status and the answer, parsed if JSON.

        Raises `OSError` or `http.client.HTTPException` if the server does not answer.
        """
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        with contextlib.closing(self.connect(timeout_s)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError):
            return response.status, text

    def healthy(self) -> bool:
        """True if a vLLM server answers here and its engine is alive."""
        try:
            return self.call("GET", "/health", timeout_s=30)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        return f"http://{host}:{self.port}"
