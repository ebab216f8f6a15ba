"""A speculator is checked completely before a weight is touched; workers agree on it."""

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.serving.admin import swap as swap_module
from outrider.serving.admin.swap import (
    Candidate,
    SpeculatorBroken,
    check_unchanged,
    read_candidate,
    read_served,
    release_files,
    swap,
)
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.speculators.checkpoints.target_fingerprint import target_fingerprint
from outrider.speculators.kinds.mtp.kind import MTP
from tests.eagle3_head import write_eagle3_head
from tests.live.releases import WEIGHTS, listed, release
from tests.tiny import edit_tensors

K = 3


@pytest.fixture
def current(nano_r1: Path) -> Candidate:
    return read_served(nano_r1)


@pytest.fixture
def good(nano_r1: Path, tmp_path: Path) -> Path:
    return release(nano_r1, tmp_path / "roots" / "good", noise=1.0, num_speculative_tokens=K)


def load(folder: Path, current: Candidate, target: Path, digest: str = "") -> Candidate:
    return read_candidate(
        directory=folder,
        current=current,
        target_dir=target,
        root=folder.parent,
        digest=digest or bundle_digest(folder),
        k=K,
    )


def overwritten(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.write(b"\x01")


def replaced(folder: Path) -> None:
    copy = shutil.copyfile(folder / WEIGHTS, folder.parent / "copy")
    copy.replace(folder / WEIGHTS)


def touched(folder: Path) -> None:
    os.utime(folder / WEIGHTS)


@pytest.mark.parametrize("change", [overwritten, replaced, shutil.rmtree])
def test_files_that_change_after_the_check_are_not_loaded(
    good: Path, current: Candidate, nano_r1: Path, change: Any
) -> None:
    new = load(good, current, nano_r1)
    assert new.digest == bundle_digest(good)
    check_unchanged(good, new.states)
    change(good)
    with pytest.raises(OutriderError, match=r": changed since it was checked"):
        check_unchanged(good, new.states)


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("eh_proj", {"eh_proj": lambda x: x * torch.nan}, "not a finite number in .*eh_proj"),
        ("0.up_proj", {"0.up_proj": lambda x: x - torch.inf}, "not a finite number in .*experts"),
        ("eh_proj", {"eh_proj": lambda x: x.T.contiguous()}, r"eh_proj\.weight is float"),
        ("hnorm", {"hnorm": lambda x: x.to(torch.int8)}, r"hnorm\.weight is int8"),
        ("hnorm", {}, "no weights for .*hnorm"),
        ("hnorm", {"knorm": torch.clone}, "hnorm"),
        (
            "hnorm",
            {"hnorm": torch.clone, "knorm": torch.clone},
            "weights of another speculator: .*knorm",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    good: Path, current: Candidate, nano_r1: Path, part: str, instead: Any, message: str
) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.endswith(f"{part}.weight"))
        old = tensors.pop(name)
        for other, change in instead.items():
            tensors[name.replace(part, other)] = change(old)

    edit_tensors(good, edit)
    listed(good)
    with pytest.raises(OutriderError, match=message) as refused:
        load(good, current, nano_r1)
    assert str(good) in str(refused.value), "the message names a file that the user does not know"


def test_weights_are_read_once_until_a_file_changes(
    good: Path, current: Candidate, nano_r1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation swaps back and forth between the same files."""
    read: list[set[str]] = []
    monkeypatch.setattr(swap_module, "check_finite", lambda headers: read.append({*headers}))
    for _ in range(3):
        new = read_candidate(good, current, nano_r1)
    assert read == [{*new.forms}]
    for reads, change in enumerate((touched, replaced), 2):
        change(good)
        read_candidate(good, current, nano_r1)
        assert len(read) == reads


def test_a_damaged_checkpoint_is_refused_again(
    good: Path, current: Candidate, nano_r1: Path
) -> None:
    edit_tensors(good, lambda tensors: [tensor.fill_(torch.nan) for tensor in tensors.values()])
    for _ in range(2):
        with pytest.raises(OutriderError, match="not a finite number"):
            read_candidate(good, current, nano_r1)


def test_files_that_are_no_whole_checkpoint_are_refused(
    good: Path, current: Candidate, nano_r1: Path
) -> None:
    digest = bundle_digest(good)
    os.truncate(good / WEIGHTS, (good / WEIGHTS).stat().st_size // 2)
    with pytest.raises(OutriderError, match=rf"{WEIGHTS}: changed since bundle\.json"):
        load(good, current, nano_r1, digest=digest)
    listed(good)
    with pytest.raises(OutriderError, match=rf"digest \w+, not {digest}"):
        load(good, current, nano_r1, digest=digest)
    with pytest.raises(OutriderError, match=str(good)):
        load(good, current, nano_r1)


def test_a_head_in_another_layout_of_names_fits(nano_r1: Path, tmp_path: Path) -> None:
    own = read_served(write_eagle3_head(nano_r1, tmp_path / "own", layers=(2, 8, 13)))
    other = write_eagle3_head(nano_r1, tmp_path / "roots" / "other", seed=1, layers=(2, 8, 13))

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    edit_tensors(other, rename)
    listed(other)
    new = load(other, own, nano_r1)
    assert new.forms.keys() != own.forms.keys()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"num_speculative_tokens": K + 1}, f"num_speculative_tokens = {K + 1}, but the engine"),
        ({"method": "eagle3"}, "method = eagle3"),
        ({"target": {"model": "R2"}, "target_fingerprint": "ab" * 32}, "made for target R2"),
    ],
)
def test_a_bundle_for_another_engine_is_refused(
    good: Path, current: Candidate, nano_r1: Path, manifest: dict[str, Any], message: str
) -> None:
    listed(good, **manifest)
    with pytest.raises(OutriderError, match=message):
        load(good, current, nano_r1)
    listed(good, target_fingerprint=target_fingerprint(nano_r1))
    load(good, current, nano_r1)


def test_a_release_is_below_its_root_and_reached_without_links(
    good: Path, tmp_path: Path, nano_r1: Path
) -> None:
    digest = bundle_digest(good)
    root = good.parent
    outside = tmp_path / "outside"
    shutil.copytree(good, outside)
    (root / "link").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / "link").symlink_to(outside)
    (root / "inner" / "up").symlink_to(root)
    for path, message in (
        (root / "link", "a plain folder, not a link"),
        (root / "inner" / "link", "a plain folder, not a link"),
        (root / "inner" / "up" / "good", "a plain folder, not a link"),
        (outside, "not below the release root"),
        (root, "not below the release root"),
        (root / ".." / "outside", r"without `\.\.`"),
        (root / "good" / ".." / "good", r"without `\.\.`"),
        (Path(os.path.relpath(good)), "expected an absolute path"),
        (root / "nowhere", "no such folder"),
    ):
        with pytest.raises(OutriderError, match=message):
            release_files(path, root, digest)
    # The root itself may be a link: that is the operator's choice.
    (tmp_path / "alias").symlink_to(root)
    release_files(tmp_path / "alias" / "good", tmp_path / "alias", digest)


@pytest.mark.parametrize("file", [WEIGHTS, "../../stolen.safetensors", "/etc/passwd"])
def test_an_index_names_files_of_the_release_only(
    good: Path, current: Candidate, nano_r1: Path, tmp_path: Path, file: str
) -> None:
    shutil.copyfile(good / WEIGHTS, tmp_path / "stolen.safetensors")
    weight_map = {name: file for name, _ in MTP().swap_tensors(nano_r1)}
    (good / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    listed(good)
    refused = pytest.raises(OutriderError, match="is not a file of the release")
    with contextlib.nullcontext() if file == WEIGHTS else refused:
        load(good, current, nano_r1)


@pytest.mark.parametrize(
    ("errors", "stuck", "message"),
    [
        (["full"], None, "stays in use: full"),
        (["full", "full"], None, "stays in use: full"),
        ([None, "full", None], None, "stays in use: full"),
        ([None, "full", None], 2, "not taken back"),
    ],
)
def test_all_workers_have_the_new_speculator_or_all_the_old_one(
    current: Candidate, errors: list[str | None], stuck: int | None, message: str
) -> None:
    """With one worker for each of `errors`; the worker `stuck` cannot take it back."""
    called: list[str] = []

    async def rpc(method: str, arguments: dict[str, Any]) -> list[Any]:
        called.append(method)
        reports: list[Any] = [{"error": error, "broken": None} for error in errors]
        if method == "speculator_take_back" and stuck is not None:
            reports[stuck]["broken"] = "not taken back"
        return reports

    with pytest.raises(OutriderError, match=message) as caught:
        asyncio.run(swap(rpc, current, "one"))
    assert isinstance(caught.value, SpeculatorBroken) == (stuck is not None)
    taken_back = ["speculator_take_back"] if None in errors else []
    assert called == ["speculator_load", *taken_back]
