"""Bundles on the hub: the folder, its model card, and a commit over HTTP."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.bundle.bundle_places import local_bundle, pinned, put_bundle
from outrider.serving.bundle.hub_bundle import HubAddress, hub_folder
from outrider.serving.bundle.model_card import model_card
from tests.serving.exported import R1, write_exported
from tests.serving.hub_server import SHA, Hub, hub

REPOSITORY = "acme/resume-speculator"


def card(bundle: Path) -> ModelCard:
    return ModelCard(model_card(bundle, REPOSITORY))


def files(folder: Path) -> dict[str, bytes]:
    found = folder.rglob("*")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found if p.is_file()}


def test_what_is_uploaded_is_the_bundle_and_its_card(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    hub_folder(bundle, REPOSITORY, tmp_path / "folder")
    uploaded = files(tmp_path / "folder")
    assert uploaded.pop("README.md").decode() == model_card(bundle, REPOSITORY)
    assert uploaded == files(bundle)


def test_the_cards_metadata_is_the_hubs(tmp_path: Path) -> None:
    found = card(write_exported(tmp_path / "bundle"))
    assert found.data.base_model == R1
    assert found.data.library_name == "vllm"
    assert found.data.pipeline_tag == "text-generation"
    assert {"speculative-decoding", "outrider"} < set(found.data.tags)
    assert found.text.strip().startswith("# resume-speculator")


def test_the_card_has_the_measured_table_in_order(tmp_path: Path) -> None:
    text = card(write_exported(tmp_path / "bundle")).text
    rows = [line for line in text.splitlines() if line.startswith("| T")]
    assert rows == [
        "| Tokens per step | 1.854 | 2.731 | 1.473 [1.451, 1.495] |",
        "| Tokens/s, compiled, 2 at a time | 110.0 | 150.0 | 1.364 [1.300, 1.400] |",
        "| Tokens/s, compiled, 16 at a time | 95.2 | 121.5 | 1.276 [1.211, 1.342] |",
    ]
    assert "base 1, this speculator 3" in text


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


def test_a_target_that_is_not_on_the_hub_is_no_base_model(tmp_path: Path) -> None:
    assert card(write_exported(tmp_path / "bundle", model="nano_r1")).data.base_model is None


def test_a_bundle_without_evidence_has_a_card_without_a_table(tmp_path: Path) -> None:
    text = card(write_exported(tmp_path / "bundle", evidence={})).text
    assert "Measured" not in text and "## Serve" in text


@pytest.mark.parametrize("evidence", [{"k": {"base": None, "custom": 3}, "verdict": "ship"}])
def test_a_base_that_drafts_nothing(tmp_path: Path, evidence: dict[str, object]) -> None:
    lengths = {"base": None, "custom": 2.5, "ratio": None, "ratio_ci95": None}
    evidence |= {"acceptance_length": lengths}
    text = card(write_exported(tmp_path / "bundle", evidence=evidence)).text
    assert "| Tokens per step |  | 2.500 |  |" in text
    assert "base none, this speculator 3" in text


def test_addresses() -> None:
    assert HubAddress.parse("hf://acme/x") == ("acme/x", None)
    assert HubAddress.parse("hf://acme/x@releases/march") == ("acme/x", "releases/march")
    for wrong in ("hf://acme", "hf://acme/x/y", "hf://acme/x@"):
        with pytest.raises(OutriderError, match="write hf://OWNER/NAME"):
            HubAddress.parse(wrong)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub here. huggingface_hub reads the environment when it is imported, so before this."""
    with hub() as found:
        for name, value in (
            ("ENDPOINT", found.address),
            (
                "HUGGINGFACE_CO_URL_TEMPLATE",
                found.address + "/{repo_id}/resolve/{revision}/{filename}",
            ),
            ("HF_HUB_OFFLINE", False),
            ("HF_HUB_DISABLE_XET", True),
            ("HF_HUB_DISABLE_TELEMETRY", True),
            ("HF_HUB_CACHE", str(tmp_path / "hub")),
        ):
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield found


@pytest.mark.parametrize("revision", ["", "@march"])
def test_a_bundle_is_one_commit_and_comes_back(server: Hub, tmp_path: Path, revision: str) -> None:
    bundle = write_exported(tmp_path / "bundle")
    server.files = {"old.safetensors": b"old", ".gitattributes": b"x"}
    put_bundle(bundle, f"hf://{REPOSITORY}{revision}")
    assert len(server.commits) == 1
    assert server.branches == [revision.removeprefix("@") or "main"]
    assert server.created[0]["visibility"] == "private"
    # The hub validates the card that is committed.
    assert set(server.cards) == {server.files["README.md"].decode()}
    uploaded = dict(server.files)
    assert uploaded.pop(".gitattributes") and uploaded.pop("README.md")
    assert uploaded == files(bundle)
    with local_bundle(f"hf://{REPOSITORY}{revision}") as directory:
        assert bundle_digest(directory) == bundle_digest(bundle)
        assert files(bundle).items() <= files(directory).items()
    assert pinned(f"hf://{REPOSITORY}{revision}") == f"hf://{REPOSITORY}@{SHA}"
    assert {revision for _, revision in server.read} == {SHA}


def test_a_hub_that_refuses_is_one_message(server: Hub, tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    server.refuse = True
    with pytest.raises(OutriderError, match=f"^hf://{REPOSITORY}: the hub refused") as caught:
        put_bundle(bundle, f"hf://{REPOSITORY}")
    assert "\n" not in str(caught.value)
    assert "hf_test" not in str(caught.value)


@pytest.mark.parametrize("change", ["../outside", "larger", "unlisted"])
def test_of_a_repository_only_listed_files_are_downloaded(
    server: Hub, tmp_path: Path, change: str
) -> None:
    put_bundle(write_exported(tmp_path / "bundle"), f"hf://{REPOSITORY}")
    if change == "larger":
        server.files["model.safetensors"] += b"more"
    elif change == "unlisted":
        server.files["extra.safetensors"] = b"weights"
    else:
        server.files["bundle.json"] = server.files["bundle.json"].replace(
            b"sglang_nextn/", b"../outside/"
        )
    refused = pytest.raises(OutriderError, match=r"outside|bytes, but")
    with (
        contextlib.nullcontext() if change == "unlisted" else refused,
        local_bundle(f"hf://{REPOSITORY}") as directory,
    ):
        assert not (directory / "extra.safetensors").exists()
    downloaded = {name for name, _ in server.read}
    assert "extra.safetensors" not in downloaded
    assert downloaded == {"bundle.json"} or change == "unlisted"


def test_a_repository_without_a_bundle_is_named(server: Hub) -> None:
    server.files = {"config.json": b"{}"}
    with (
        pytest.raises(OutriderError, match=r"has no bundle\.json"),
        local_bundle(f"hf://{REPOSITORY}"),
    ):
        pass


def test_the_card_quotes_no_text_of_requests(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["evidence"]["unknown"] = "Kanarienvogel"
    write_json(bundle / "bundle.json", manifest)
    assert "Kanarienvogel" not in model_card(bundle, REPOSITORY)
