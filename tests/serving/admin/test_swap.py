"""A speculator is checked completely before a weight is touched; workers agree on it."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.serving.admin.swap import (
    Candidate,
    SpeculatorBroken,
    check_unchanged,
    checked,
    in_service,
    release_files,
    swap,
)
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.speculators.checkpoints.target_fingerprint import target_fingerprint
from outrider.speculators.kinds.mtp.checkpoint import stored_mtp_tensors
from tests.eagle3_head import write_eagle3_head
from tests.live.releases import WEIGHTS, edited, listed, release, truncated

K = 3


@pytest.fixture
def current(nano_r1: Path) -> Candidate:
    return in_service(nano_r1)


@pytest.fixture
def good(nano_r1: Path, tmp_path: Path) -> Path:
    return release(nano_r1, tmp_path / "roots" / "good", noise=1.0, num_speculative_tokens=K)


def load(folder: Path, current: Candidate, target: Path, **how: Any) -> Candidate:
    digest = how.pop("digest", None) or bundle_digest(folder)
    return checked(folder, current, target, folder.parent, digest, K)


def test_files_that_change_after_the_check_are_not_loaded(
    good: Path, current: Candidate, nano_r1: Path, tmp_path: Path
) -> None:
    new = load(good, current, nano_r1)
    assert new.digest == bundle_digest(good)
    check_unchanged(good, new.states)
    other = release(nano_r1, tmp_path / "other")
    kept = (good / WEIGHTS).rename(tmp_path / "kept")
    (other / WEIGHTS).rename(good / WEIGHTS)
    with pytest.raises(OutriderError, match=f"{WEIGHTS}: changed since it was checked"):
        check_unchanged(good, new.states)
    kept.replace(good / WEIGHTS)
    new = load(good, current, nano_r1)
    with (good / WEIGHTS).open("r+b") as file:
        file.write(b"\x01")
    with pytest.raises(OutriderError, match=f"{WEIGHTS}: changed since it was checked"):
        check_unchanged(good, new.states)
    shutil.rmtree(good)
    with pytest.raises(OutriderError, match=r"config\.json: changed since it was checked"):
        check_unchanged(good, new.states)


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[next(n for n in tensors if n.endswith("eh_proj.weight"))][3, 5] = torch.nan


def infinite(tensors: dict[str, torch.Tensor]) -> None:
    tensors[next(n for n in tensors if "experts" in n)][0, 0] = -torch.inf


def transposed(tensors: dict[str, torch.Tensor]) -> None:
    name = next(n for n in tensors if n.endswith("eh_proj.weight"))
    tensors[name] = tensors[name].T


def without_a_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(n for n in tensors if n.endswith("hnorm.weight"))]


def with_another(tensors: dict[str, torch.Tensor]) -> None:
    name = next(n for n in tensors if n.endswith("hnorm.weight"))
    tensors[name.replace("hnorm", "knorm")] = tensors[name].clone()


def integers(tensors: dict[str, torch.Tensor]) -> None:
    name = next(n for n in tensors if n.endswith("hnorm.weight"))
    tensors[name] = tensors[name].to(torch.int8)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (nan, "not a finite number in .*eh_proj"),
        (infinite, "not a finite number in .*experts"),
        (transposed, r"eh_proj\.weight is float \[128, 64\]|eh_proj\.weight is float"),
        (without_a_norm, "no weights for .*hnorm"),
        (with_another, "weights of another speculator: .*knorm"),
        (integers, r"hnorm\.weight is int8"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tensors_that_do_not_fit_are_refused(
    good: Path, current: Candidate, nano_r1: Path, edit: Any, message: str
) -> None:
    edited(good, edit)
    with pytest.raises(OutriderError, match=message) as refused:
        load(good, current, nano_r1)
    assert str(good) in str(refused.value), "the message names a file that the user does not know"


def test_files_that_are_no_whole_checkpoint_are_refused(
    good: Path, current: Candidate, nano_r1: Path
) -> None:
    digest = bundle_digest(good)
    truncated(good, relist=False)
    with pytest.raises(OutriderError, match=rf"{WEIGHTS}: changed since bundle\.json"):
        load(good, current, nano_r1, digest=digest)
    listed(good)
    with pytest.raises(OutriderError, match=rf"digest \w+, not {digest}"):
        load(good, current, nano_r1, digest=digest)
    with pytest.raises(OutriderError, match=str(good)):
        load(good, current, nano_r1)


def test_a_head_in_another_layout_of_names_fits_and_a_renamed_tensor_does_not(
    nano_r1: Path, current: Candidate, good: Path, tmp_path: Path
) -> None:
    own = in_service(write_eagle3_head(nano_r1, tmp_path / "own", layers=(2, 8, 13)))
    other = write_eagle3_head(nano_r1, tmp_path / "roots" / "other", seed=1, layers=(2, 8, 13))

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    edited(other, rename)
    new = load(other, own, nano_r1)
    assert new.forms.keys() != own.forms.keys()

    def misname(tensors: dict[str, torch.Tensor]) -> None:
        name = next(n for n in tensors if n.endswith("hnorm.weight"))
        tensors[name.replace("hnorm", "knorm")] = tensors.pop(name)

    edited(good, misname)
    with pytest.raises(OutriderError, match="hnorm"):
        load(good, current, nano_r1)


def test_another_number_of_drafts_or_kind_than_the_engine_s_is_refused(
    good: Path, current: Candidate, nano_r1: Path
) -> None:
    listed(good, num_speculative_tokens=K + 1)
    with pytest.raises(OutriderError, match=f"num_speculative_tokens = {K + 1}, but the engine"):
        load(good, current, nano_r1)
    listed(good, method="eagle3")
    with pytest.raises(OutriderError, match="method = eagle3"):
        load(good, current, nano_r1)


def test_a_release_is_below_its_root_and_reached_without_links(
    good: Path, tmp_path: Path, nano_r1: Path
) -> None:
    digest, root = bundle_digest(good), good.parent
    outside = tmp_path / "outside"
    shutil.copytree(good, outside)
    (root / "link").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / "link").symlink_to(outside)
    (root / "inner" / "up").symlink_to(root)
    for path in ("link", "inner/link", "inner/up/good"):
        with pytest.raises(OutriderError, match="a plain folder, not a link"):
            release_files(root / path, root, digest)
    for path in (outside, root, root / ".." / "outside", root / "good" / ".." / "good"):
        with pytest.raises(OutriderError, match=r"not below the release root|without `\.\.`"):
            release_files(path, root, digest)
    with pytest.raises(OutriderError, match="expected an absolute path"):
        release_files(Path(os.path.relpath(good)), root, digest)
    with pytest.raises(OutriderError, match="no such folder"):
        release_files(root / "nowhere", root, digest)
    # The root itself may be a link: that is the operator's choice.
    (tmp_path / "alias").symlink_to(root)
    release_files(tmp_path / "alias" / "good", tmp_path / "alias", digest)


def test_an_index_names_files_of_the_release_only(
    good: Path, current: Candidate, nano_r1: Path, tmp_path: Path
) -> None:
    names = [name for name, _ in stored_mtp_tensors(nano_r1)]
    (tmp_path / "stolen.safetensors").write_bytes((good / WEIGHTS).read_bytes())
    for file, sound in (
        (WEIGHTS, True),
        ("../../stolen.safetensors", False),
        ("/etc/passwd", False),
    ):
        index = {"weight_map": dict.fromkeys(names, file)}
        (good / "model.safetensors.index.json").write_text(json.dumps(index))
        listed(good)
        if sound:
            load(good, current, nano_r1)
        else:
            with pytest.raises(OutriderError, match="is not a file of the release"):
                load(good, current, nano_r1)


def test_a_release_of_another_target_with_the_same_shapes_is_refused(
    good: Path, current: Candidate, nano_r1: Path
) -> None:
    listed(good, target={"model": "R1-0528"}, target_fingerprint="ab" * 32)
    with pytest.raises(OutriderError, match="made for target R1-0528"):
        load(good, current, nano_r1)
    listed(good, target_fingerprint=target_fingerprint(nano_r1))
    load(good, current, nano_r1)


def ordered(
    current: Candidate, errors: list[str | None], stuck: int | None = None
) -> tuple[list[str], Any]:
    """The calls of a swap, and its reports or error, with one worker for each of `errors`.

    `stuck` is the worker that cannot take it back.
    """
    called: list[str] = []

    async def rpc(method: str, arguments: dict[str, Any]) -> list[Any]:
        called.append(method)
        assert arguments["swap_id"] == "one"
        reports: list[Any] = [{"error": error, "broken": None} for error in errors]
        if method == "speculator_take_back" and stuck is not None:
            reports[stuck]["broken"] = "not taken back"
        return reports

    try:
        return called, asyncio.run(swap(rpc, current, "one"))
    except OutriderError as error:
        return called, error


def test_all_workers_have_the_new_speculator_or_all_the_old_one(current: Candidate) -> None:
    for errors in (["full"], ["full", "full"]):
        called, error = ordered(current, errors)
        assert called == ["speculator_load"] and str(error).endswith("stays in use: full")
    called, error = ordered(current, [None, "full", None])
    assert called == ["speculator_load", "speculator_take_back"]
    assert "stays in use: full" in str(error) and not isinstance(error, SpeculatorBroken)
    _, error = ordered(current, [None, "full", None], stuck=2)
    assert isinstance(error, SpeculatorBroken) and "not taken back" in str(error)
