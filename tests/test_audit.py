"""`make audit` with a stand-in of osv.dev on this machine: what it prints, and its exit status.

python -m pytest tests/test_audit.py -m slow      # installs pip-audit from the package index
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "requirements/audit.sh"
AUDITED = ("cpu", "torch-cpu", "gpu", "docs", "smollm2", "sglang", "uv", "build")
"""Lists of pins that hold one package in the test; audit.txt is the real one, and installed."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Database:
    """The interface of osv.dev that pip-audit calls: a query for each package and version."""

    def __init__(self) -> None:
        self.vulnerable: dict[str, str] = {}
        """Identifier of a vulnerability, by the package's name."""
        self.asked: set[tuple[str, str]] = set()
        database = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.dumps(database.answer(json.loads(self.rfile.read(length)))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/query"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, query: dict[str, Any]) -> dict[str, Any]:
        name = query["package"]["name"]
        self.asked.add((name, query["version"]))
        if name not in self.vulnerable:
            return {}
        package = {"name": name, "ecosystem": "PyPI"}
        events = [{"introduced": "0"}, {"fixed": "99.0"}]
        affected = {"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
        found = {"id": self.vulnerable[name], "summary": "a test", "affected": [affected]}
        return {"vulns": [found]}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.close()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, short lists of pins, and this checkout's uv."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "requirements").mkdir()
    (folder / ".venv").symlink_to(ROOT / ".venv")
    for name in (SCRIPT, "requirements/audit.txt"):
        shutil.copyfile(ROOT / name, folder / name)
    for name in AUDITED:
        version = "2.13.0+cpu" if name == "torch-cpu" else "1.0"
        package = "torch" if name == "torch-cpu" else f"pinned-{name}"
        text = f"{package}=={version} \\\n    --hash=sha256:{'0' * 64}\n"
        (folder / f"requirements/{name}.txt").write_text(text)
    return folder


def audit(checkout: Path, url: str) -> subprocess.CompletedProcess[str]:
    """The script's output and exit status; skipped where pip-audit cannot be installed."""
    done = subprocess.run(
        ["sh", SCRIPT],
        cwd=checkout,
        env=os.environ | {"OSV_URL": url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    if "audit: requirements/cpu.txt" not in done.stdout:
        pytest.skip(f"pip-audit cannot be installed here: {done.stderr[-300:]}")
    return done


def test_no_known_vulnerability_is_0_and_every_pin_is_looked_up(
    checkout: Path, database: Database
) -> None:
    done = audit(checkout, database.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("audit: no pinned version has a known vulnerability\n")
    assert {("pinned-gpu", "1.0"), ("torch", "2.13.0")} <= database.asked
    assert any(name == "pip-audit" for name, _ in database.asked)


def test_a_known_vulnerability_is_1_and_named(checkout: Path, database: Database) -> None:
    database.vulnerable = {"torch": "PYSEC-2026-1", "pinned-sglang": "GHSA-aaaa-bbbb-cccc"}
    done = audit(checkout, database.url)
    assert done.returncode == 1
    for words in ("torch", "PYSEC-2026-1", "pinned-sglang", "GHSA-aaaa-bbbb-cccc"):
        assert words in done.stdout
    assert (
        "known vulnerabilities in requirements/torch-cpu.txt requirements/sglang.txt" in done.stderr
    )


def test_no_answer_is_2_and_names_the_address(checkout: Path, database: Database) -> None:
    database.close()
    done = audit(checkout, database.url)
    assert done.returncode == 2
    assert f"audit: {database.url} did not answer for requirements/cpu.txt" in done.stderr
