"""A small replica: an HTTP server on a Unix socket that answers with its name.

    python backend.py NAME SOCKET

POST with {"seconds": S} answers after S seconds, with {"stream": N} in N events, 20 ms apart, with
{"status": 500} with that status. /health answers 503 while the file SOCKET.sick exists.
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

    def do_GET(self) -> None:
        status = 503 if self.path == "/health" and self.sick.exists() else 200
        self.answer(status, {"name": self.name, "path": self.path, "headers": dict(self.headers)})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data or b"{}")
        time.sleep(body.get("seconds", 0))
        if "stream" not in body:
            status = body.get("status", 200)
            headers = dict(self.headers)
            return self.answer(
                status, {"name": self.name, "bytes": len(data), "path": self.path} | headers
            )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(body["stream"]):
            self.chunk(f"data: {self.name} {index}\n\n".encode())
            time.sleep(0.02)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
        return None

    do_PUT = do_DELETE = do_OPTIONS = do_PATCH = do_HEAD = do_GET

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def answer(self, status: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 512


if __name__ == "__main__":
    name, path = sys.argv[1:]
    Handler.name, Handler.sick = name, Path(f"{path}.sick")
    Path(path).unlink(missing_ok=True)
    with Server(path, Handler) as server:
        server.serve_forever()
