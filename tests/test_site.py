"""The documentation's site needs no other address: it can be read where nothing leaves the network.

Built with mkdocs where it is installed (`make docs` and `make test` install it). The theme's script
has addresses of its own, which it asks for pages with a Mermaid block and for old browsers only.
"""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.eval.chromium import MISSING, chromium_path, opened

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
ELSEWHERE = ("http:", "https:", "//")
LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "prefetch"}


class Loaded(HTMLParser):
    """Collects the addresses that a browser loads with a page: links of the text are none."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Reads one element."""
        values = {name: value or "" for name, value in attrs}
        self.addresses += [values[name] for name in ("src", "srcset", "data") if name in values]
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self.addresses.append(values.get("href", ""))
        assert "mermaid" not in values.get("class", "").split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("no mkdocs: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_no_source_has_a_diagram_that_a_script_draws(page: Path) -> None:
    assert not re.search(r"^\s*(```|~~~)\s*\{?\.?mermaid", page.read_text(encoding="utf-8"), re.M)


def test_no_page_or_style_loads_from_another_address(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(DOCS)
    loaded = []
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        loaded += parser.addresses
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        loaded += re.findall(r"""(?:url\(|@import\s*)["']?([^"')\s]+)""", text)
    assert len(loaded) > len(pages)
    assert [address for address in loaded if address.startswith(ELSEWHERE)] == []


def test_a_browser_asks_for_files_of_the_site_only(site: Path) -> None:
    path = chromium_path()
    if path is None:
        pytest.skip(MISSING)
    asked: list[str] = []
    with opened(path) as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "explanation/architecture.html"):
            page.goto((site / name).as_uri())
            page.wait_for_load_state("networkidle")
    assert len(asked) > 2
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
