"""Stores that do not answer: one message with the URL, for every client."""

import http.server
import threading

from outrider.data.formats.sources import log_files


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
