"""A small replica: an HTTP server on a Unix socket that answers with its name.

    python backend.py NAME SOCKET

A body of {"seconds": S} is answered after S seconds, {"status": 500} with that status, {"stream":
N} in N events, 20 ms apart, {"until": FILE} in two events, the second when FILE exists, {"never":
NAME} never by the replica of that name. /health answers 503 while SOCKET.sick exists.
"""

import json
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name = ""
    sick = Path()

    def answer_request(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        time.sleep(10_000 if body.get("never") == self.name else body.get("seconds", 0))
        if "stream" in body or "until" in body:
            self.stream(body)
            return
        sick = self.path == "/health" and self.sick.exists()
        headers = {key.lower(): value for key, value in self.headers.items()}
        data = json.dumps({"name": self.name, "path": self.path, "headers": headers}).encode()
        self.send_response(503 if sick else body.get("status", 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = do_HEAD = answer_request

    def stream(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(body.get("stream", 2)):
            self.chunk(f"data: {self.name} {index}\n\n".encode())
            while "until" in body and not Path(body["until"]).exists():
                time.sleep(0.01)
            time.sleep(0.02)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_: object) -> None:
        """Prints nothing: some tests break requests off."""


if __name__ == "__main__":
    name, path = sys.argv[1:]
    Handler.name = name
    Handler.sick = Path(f"{path}.sick")
    Path(path).unlink(missing_ok=True)
    with Server(path, Handler) as server:
        server.serve_forever()
