"""Sessions are erased from a bundle, which is then another whole bundle."""

from pathlib import Path

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.serving.bundle.bundle import export_bundle
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.bundle.erase import erase_sessions, holds_sessions
from outrider.serving.bundle.model_card import model_card
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.serve_flags import bundle_command, read_serve_flags
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds.suffix import FACTOR, SuffixLookup
from outrider.speculators.lookup_history import HISTORY_FILE, EarlierResponse, read_history
from tests.serving.exported import files, write_exported

SETTINGS = {FACTOR: 2.0}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Ten responses of five sessions."""
    responses = [
        EarlierResponse(np.array([n, n, n], np.int32), f"session {n // 2}") for n in range(10)
    ]
    directory = SuffixLookup().prepare(responses, tmp_path / "made", max_gb=1.0, shared=True)
    drafting = Drafting(Speculator("suffix", directory, SETTINGS), 6)
    out = tmp_path / "bundle"
    export_bundle(drafting, TargetConfig(), EngineConfig(), evidence={}, out_dir=out)
    return out


def test_a_bundle_has_the_history_and_the_server_gets_it(bundle: Path) -> None:
    manifest = read_json(bundle / "bundle.json")
    assert set(manifest["files"]) == {"serve.sh", HISTORY_FILE}
    assert (bundle / HISTORY_FILE).stat().st_mode & 0o777 == 0o600
    assert Speculator.from_name(bundle) == Speculator("suffix", bundle, SETTINGS)
    given = read_serve_flags(bundle, "/mnt/speculator").arguments["speculative_config"]
    assert given["model"] == "/mnt/speculator" and given[FACTOR] == 2.0
    command, _ = bundle_command(bundle)
    assert str(bundle) in " ".join(command)
    script = (bundle / "serve.sh").read_text()
    assert '"model": "\'"$here"\'"' in script and "OUTRIDER_HOOKS=1" in script
    assert "10 of the 10 responses" in model_card(bundle, "acme/lookup")


def test_erased_sessions_are_gone_and_the_bundle_is_whole(bundle: Path) -> None:
    before = bundle_digest(bundle)
    assert holds_sessions(bundle, ["session 3"])
    assert erase_sessions(bundle, ["session 3", "session 0", "unknown"]) == 4
    assert bundle_digest(bundle) != before
    history = read_history(bundle / HISTORY_FILE)
    assert set(history.tokens_N) == {-1, 2, 3, 4, 5, 8, 9}
    assert read_json(bundle / "bundle.json")["history"] == history.facts
    assert (bundle / HISTORY_FILE).stat().st_mode & 0o777 == 0o600
    assert not holds_sessions(bundle, ["session 3"])
    unchanged = files(bundle)
    assert erase_sessions(bundle, ["session 3"]) == 0
    assert files(bundle) == unchanged
    assert erase_sessions(bundle, None) == 6


def test_a_bundle_without_a_history_and_a_changed_one_are_refused(
    bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(OutriderError, match="nothing to erase"):
        erase_sessions(write_exported(tmp_path / "head"), ["session 3"])
    (bundle / HISTORY_FILE).write_bytes((bundle / HISTORY_FILE).read_bytes() + b" ")
    with pytest.raises(OutriderError, match="changed since"):
        erase_sessions(bundle, ["session 3"])


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "custom_class"},
        {"model": "evil.Proposer"},
        {FACTOR: "2"},
        {FACTOR: True},
        {FACTOR: float("inf")},
        {FACTOR: -1},
        {FACTOR: [2.0]},
        ["model"],
        None,
    ],
)
def test_settings_of_a_hostile_bundle_are_refused(bundle: Path, settings: object) -> None:
    manifest = read_json(bundle / "bundle.json") | {"settings": settings}
    with pytest.raises(OutriderError, match="settings"):
        Drafting.from_manifest(manifest, bundle)
