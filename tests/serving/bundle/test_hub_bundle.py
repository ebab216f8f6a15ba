"""Bundles on the hub: the folder, its model card, and one commit."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import huggingface_hub
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.serving.bundle.bundle_places import local_bundle, pin_location, put_bundle
from outrider.serving.bundle.model_card import model_card
from tests.serving.exported import R1, files, write_exported

REPOSITORY = "acme/resume-speculator"
SHA = "c" * 40


def card(bundle: Path) -> ModelCard:
    return ModelCard(model_card(bundle, REPOSITORY))


def test_the_card_has_the_measured_table_in_order(tmp_path: Path) -> None:
    text = card(write_exported(tmp_path / "bundle")).text
    rows = [line for line in text.splitlines() if line.startswith("| T")]
    assert rows == [
        "| Tokens per step | 1.854 | 2.731 | 1.473 [1.451, 1.495] |",
        "| Tokens/s, compiled, 2 at a time | 110.0 | 150.0 | 1.364 [1.300, 1.400] |",
        "| Tokens/s, compiled, 16 at a time | 95.2 | 121.5 | 1.276 [1.211, 1.342] |",
    ]
    assert "base 1, this speculator 3" in text
    manifest = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    manifest["evidence"]["unknown"] = "Kanarienvogel"  # such as the text of a request
    write_json(tmp_path / "bundle" / "bundle.json", manifest)
    assert card(tmp_path / "bundle").text == text
    write_json(tmp_path / "bundle" / "bundle.json", manifest | {"evidence": {}})
    assert "Measured" not in card(tmp_path / "bundle").text


def test_the_cards_command_is_a_shells(tmp_path: Path) -> None:
    """bash runs it with a `vllm` that shows its arguments."""
    bundle = write_exported(tmp_path / "bundle", revision="v1", schedule=[(1, 4, 3), (5, 64, 1)])
    script = card(bundle).text.partition("```bash\n")[2].partition("```")[0]
    show = 'vllm() { printf "%s\\n" "$@"; }\n'
    done = subprocess.run(
        ["bash", "-ec", show + script], capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert words[:4] == ["serve", R1, "--revision", "v1"]
    speculative = json.loads(words[words.index("--speculative-config") + 1])
    assert speculative["model"] == REPOSITORY
    assert speculative["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 64, 1]]


class Hub(Mock):
    """One repository, in place of huggingface_hub's client and its two downloads."""

    folder: Path

    def upload_folder(self, folder_path: str, delete_patterns: str, **given: Any) -> None:
        assert delete_patterns == "*"
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(folder_path, self.folder)
        self.commit(**given)

    def model_info(self, name: str, revision: str | None, files_metadata: bool) -> SimpleNamespace:
        found = [SimpleNamespace(rfilename=k, size=len(v)) for k, v in files(self.folder).items()]
        return SimpleNamespace(sha=SHA, siblings=found)

    def download(
        self, name: str, file: str = "", *, revision: str, local_dir: Path, allow_patterns: Any = ()
    ) -> None:
        wanted = [file] if file else allow_patterns
        self.downloaded(revision, wanted)
        for each in wanted:
            (local_dir / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / each, local_dir / each)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    hub = Hub(folder=tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
    return hub


@pytest.mark.parametrize("revision", [None, "march"])
def test_a_bundle_is_one_commit_and_comes_back(
    server: Hub, tmp_path: Path, revision: str | None
) -> None:
    bundle = write_exported(tmp_path / "bundle")
    address = f"hf://{REPOSITORY}" + (f"@{revision}" if revision else "")
    server.folder.mkdir()
    (server.folder / "old.safetensors").touch()
    put_bundle(bundle, address)
    names = [name for name, *_ in server.method_calls]
    assert names == ["create_repo", *(["create_branch"] if revision else []), "commit"]
    assert server.create_repo.call_args.kwargs["private"]
    assert server.commit.call_args.kwargs["revision"] == revision
    uploaded = files(server.folder)
    assert uploaded.pop("README.md").decode() == model_card(bundle, REPOSITORY)
    assert uploaded == files(bundle)
    (server.folder / "extra.safetensors").write_bytes(b"weights")
    with local_bundle(address) as directory:
        assert files(directory) == files(bundle)
    assert pin_location(address) == f"hf://{REPOSITORY}@{SHA}"
    assert {each.args[0] for each in server.downloaded.call_args_list} == {SHA}


def test_a_hub_that_refuses_is_one_message(server: Hub, tmp_path: Path) -> None:
    response = httpx.Response(403, request=httpx.Request("POST", "http://hub"))
    server.create_repo.side_effect = HfHubHTTPError(
        "no write access\nfor hf_test", response=response
    )
    with pytest.raises(OutriderError, match=f"^hf://{REPOSITORY}: the hub refused") as caught:
        put_bundle(write_exported(tmp_path / "bundle"), f"hf://{REPOSITORY}")
    assert "\n" not in str(caught.value)


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("bundle.json", b"sglang_nextn/", b"../outside/", "outside"),
        ("model.safetensors", b"weights", b"more than listed", "bytes, but"),
    ],
)
def test_a_repository_that_does_not_fit_its_list_is_not_downloaded(
    server: Hub, tmp_path: Path, file: str, old: bytes, new: bytes, message: str
) -> None:
    put_bundle(write_exported(tmp_path / "bundle"), f"hf://{REPOSITORY}")
    changed = server.folder / file
    changed.write_bytes(changed.read_bytes().replace(old, new))
    with pytest.raises(OutriderError, match=message), local_bundle(f"hf://{REPOSITORY}"):
        pass
    server.downloaded.assert_called_once_with(SHA, ["bundle.json"])
