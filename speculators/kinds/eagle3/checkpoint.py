"""Reads an EAGLE-3 head, and writes one that vLLM and SGLang load.

    head = kind.load(directory, target_dir, torch.float32)
    kind.write(kind.trained_tensors(head, head.state_dict()), origin, out_dir)

A directory holds config.json and the head's tensors: fc, `midlayer.*` (`layers.0.*` in the layout
of vllm-project/speculators), norm, lm_head with a row for each draft token, and the draft
vocabulary: d2t (target id = draft id + d2t[draft id]) and, for readers other than vLLM, t2d, which
marks the target's tokens that have a draft token. Both are absent if the head drafts from the
whole vocabulary.

The embedding is the target's and is never written, since SGLang, like vLLM's weight swap, would
copy it over the target's own. The functions implement the kind's methods (eagle3/kind.py); `kind`
defines what differs between heads of this format.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.checks import check_names
from outrider.speculators.checkpoints.layout import CheckpointLayout, read_layout, weight_map
from outrider.speculators.checkpoints.model_config import read_config, read_head_config
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.checkpoints.tensors import CheckpointTensors, fill, write_checkpoint
from outrider.speculators.draft_vocabulary import chosen_ids, mixed_ids
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import DraftHead
from outrider.speculators.kinds.eagle3.check import check_embedding, mapped_tokens
from outrider.speculators.kinds.eagle3.closed_form import fit_head
from outrider.speculators.kinds.eagle3.layer import EagleHead, StoredHead
from outrider.speculators.kinds.eagle3.shape import (
    D2T,
    LAYER,
    LAYER_OF_SPECULATORS,
    MAPS,
    T2D,
    EagleShape,
    check_width,
    eagle_checkpoint_names,
)
from outrider.speculators.kinds.protocol import Origin

INTO_RESIDUAL = (".self_attn.o_proj.weight", ".mlp.down_proj.weight")


class HeadKind(Protocol):
    """What differs between the kinds of heads that are stored in this format."""

    def shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> EagleShape:
        """Reads the shape of the head whose config.json is at `path`."""

    def new_module(self, shape: EagleShape, target_ids_D: Tensor | None) -> StoredHead:
        """The module, without initial weights; without ids, it drafts the whole vocabulary."""

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """config.json (plain layout) of a new head; `drafts`: draft vocabulary size."""

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """Maps tensor names in the module to stored names."""

    def speculators_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
    ) -> dict[str, Any] | None:
        """config.json in the format of vllm-project/speculators; None if unsupported."""

    def served_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> Mapping[str, Any]:
        """config.json from which an engine reads the states that the head was made for."""


def load_head(
    kind: HeadKind,
    directory: Path,
    target_dir: Path,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> StoredHead:
    """Loads the head of a directory in either layout."""
    directory = Path(directory)
    path = directory / "config.json"
    stored = _stored(directory)
    shape = kind.shape(stored.layout.config, read_config(target_dir / "config.json"), path)
    check_width(shape, path)
    check_embedding(directory, read_layout(target_dir))
    names = kind.names(stored.layout.weight_map)
    ids_D = None
    if shape.drafts != shape.vocab:
        if D2T not in names:
            raise OutriderError(
                f"{directory}: no tensor d2t, though config.json has draft_vocab_size"
                f" {shape.drafts} of {shape.vocab}; without it, draft tokens have no meaning: use"
                " the complete checkpoint"
            )
        ids_D = mapped_tokens(stored.raw(names[D2T]), shape.vocab, directory)
        ids_D, order_D = ids_D.sort()
    with torch.device("meta"):
        head = kind.new_module(shape, ids_D)
    head = head.to_empty(device=device).to(dtype)
    head.target_ids_D = None if ids_D is None else ids_D.to(device)
    state = head.state_dict()
    check_names(directory, names.keys() - MAPS, state)
    fill(state, lambda name: stored.read(names[name], torch.float32), directory)
    if ids_D is not None:  # some heads have their tokens in order of frequency
        for name in head.of_draft_tokens:
            state[name].copy_(state[name][order_D.to(device)])
    return head


def start_head(
    kind: HeadKind, origin: Origin, dtype: torch.dtype, device: torch.device | str, seed: int
) -> StoredHead:
    """Loads the base's head, or creates one with a draft vocabulary.

    With traffic, a base's head drafts as many tokens as before, but also the traffic's (`_follow`);
    with `origin.refit`, its weights are replaced as if it were new. A new head's rows are the
    target's rows for the draft tokens. Since the last norm gives the head's states roughly the
    target's scale, drafts are meaningful from the first steps. Other matrices are drawn with
    standard deviation 0.7 / sqrt(inputs), or 0.02 if they write into the residual stream, so that
    the layer starts near the identity. The target's norms are not copied. The head is then fitted
    to `origin.rows` if they are given (closed_form.py).
    """
    if origin.base_dir is not None:
        head = load_head(
            kind,
            directory=origin.base_dir,
            target_dir=origin.target_dir,
            dtype=dtype,
            device=device,
        )
        if origin.token_counts is not None and head.target_ids_D is not None:
            _follow(head, origin.token_counts(), origin.target_dir)
        if not origin.refit:
            return head
        ids_D = head.target_ids_D
        head = type(head)(head.shape, None if ids_D is None else ids_D.cpu())
    else:
        head = _new(kind, origin)
    # On the CPU, so that all processes and devices draw the same weights.
    generator = torch.Generator().manual_seed(seed)
    ends = load_target_ends(origin.target_dir, torch.float32)
    rows_VH = ends.lm_head_VH
    ids_D = head.target_ids_D
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name == "lm_head.weight":
                parameter.copy_(rows_VH if ids_D is None else rows_VH[ids_D])
            elif parameter.dim() > 1:
                std = 0.02 if name.endswith(INTO_RESIDUAL) else 0.7 / math.sqrt(parameter.shape[1])
                parameter.normal_(std=std, generator=generator)
    head = head.to(device)
    if origin.rows is not None:
        fit_head(cast(EagleHead, head), ends.to(device), origin.rows, seed)
    return head.to(dtype)


def _new(kind: HeadKind, origin: Origin) -> StoredHead:
    """Builds the head of `origin.head`, without its initial weights."""
    target_config = read_config(origin.target_dir / "config.json")
    vocabulary = origin.head.draft_vocabulary
    ids_D = None
    if vocabulary != "all":
        if origin.token_counts is None:
            raise OutriderError(
                "speculator.head.draft_vocabulary: there is no traffic to choose the draft"
                " vocabulary from; set it to all, or start from a head (speculator.base)"
            )
        ids_D = chosen_ids(origin.token_counts().sum(0), vocabulary)
    drafts = target_config["vocab_size"] if ids_D is None else len(ids_D)
    config = kind.new_config(target_config, origin.head, drafts)
    shape = kind.shape(config, target_config, origin.target_dir / "config.json")
    return kind.new_module(shape, ids_D)


def _follow(head: StoredHead, counts_FV: Tensor, target_dir: Path) -> None:
    """Changes the head's draft tokens to those of base and traffic that cover most of it.

    Rows of new tokens in `lm_head` are a W_target + c, with the a and c that minimize
    |W_base - a W_target - c| over the base's tokens; other rows of new tokens are zero. The shift c
    is what training added to all rows alike: without it, new tokens take probability from those
    that the base has learned, and 1,329 new ones of 8,192 cost 2.8 % of the accepted tokens
    (benchmarks/results/smollm2.md).
    """
    assert head.target_ids_D is not None
    base_ids_D = head.target_ids_D.cpu()
    rows_VH = load_target_ends(target_dir).lm_head_VH
    ids_D = mixed_ids(base_ids_D, counts_FV)
    same_DH = rows_VH[base_ids_D].float()
    for name in head.of_draft_tokens:
        parameter = head.get_parameter(name)
        base_DH = parameter.detach().float().cpu()
        base_row_D, known_D = DraftHead(base_DH, base_ids_D).from_target(ids_D)
        new_DH = torch.zeros_like(base_DH)
        if name == "lm_head.weight":
            # Least squares: a = <W_base, W> / <W, W> of centred rows, c = mean(W_base) - a mean(W).
            mean_H = same_DH.mean(0)
            centred_DH = same_DH - mean_H
            scale = (base_DH * centred_DH).sum() / centred_DH.square().sum()
            new_DH = scale * (rows_VH[ids_D].float() - mean_H) + base_DH.mean(0)
        parameter.data.copy_(torch.where(known_D[:, None], base_DH[base_row_D], new_DH))
    head.target_ids_D.copy_(ids_D)


def trained_head_tensors(
    head: StoredHead, state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yields (name in the plain layout, tensor), including the draft vocabulary."""
    yield from state.items()
    ids_D = head.target_ids_D
    if ids_D is not None:
        ids_D = ids_D.cpu()
        # vLLM adds the row's number again (llama_eagle3.py:386).
        yield D2T, ids_D - torch.arange(len(ids_D))
        yield T2D, torch.zeros(head.shape.vocab, dtype=torch.bool).index_fill_(0, ids_D, True)


def write_head(
    kind: HeadKind, changed: Iterable[tuple[str, Tensor]], origin: Origin, out_dir: Path
) -> None:
    """Publishes the head's directory atomically.

    A warm start keeps the base's configuration, layout and dtypes, and the bytes of tensors not in
    `changed`. Without a base, floats have the target's `torch_dtype`.
    """
    if origin.base_dir is not None:
        target_config = read_config(origin.target_dir / "config.json")
        config, written = _over_base(kind, dict(changed), origin.base_dir, target_config)
    else:
        target_config = read_config(origin.target_dir / "config.json")
        tensors = dict(changed)
        config = kind.new_config(target_config, origin.head, len(tensors["lm_head.weight"]))
        dtype = getattr(torch, str(config["torch_dtype"]).removeprefix("torch."))
        written = {
            name: _stored_as(tensor, dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in tensors.items()
        }
    write_checkpoint(config, written, out_dir)


def write_for_speculators(
    kind: HeadKind, *, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
) -> None:
    """Writes `speculators`, the format of vllm-project/speculators, if it supports the head."""
    config = read_head_config(directory / "config.json")
    target_config = read_config(target_dir / "config.json")
    if "speculators_model_type" in config:
        return
    twin = kind.speculators_config(config, target_config, target, drafts)
    if twin is None:
        return
    stored = _stored(directory)
    renamed = {
        name.replace(LAYER, LAYER_OF_SPECULATORS): stored.raw(of_head)
        for name, of_head in eagle_checkpoint_names(stored.layout.weight_map).items()
    }
    write_checkpoint(twin, renamed, out_dir / "speculators")


def head_swap_tensors(kind: HeadKind, directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields (stored name, tensor) of the head and d2t, without the embedding."""
    stored = _stored(directory)
    names = kind.names(stored.layout.weight_map)
    for name in sorted(names.keys() - {T2D}):
        yield names[name], stored.raw(names[name])


def _stored(directory: Path) -> CheckpointTensors:
    config = read_head_config(Path(directory) / "config.json")
    if config.get("quantization_config"):
        raise OutriderError(
            f"{Path(directory) / 'config.json'}: quantization_config: Outrider reads EAGLE-3 heads"
            " with unquantized weights only; name the unquantized head"
        )
    return CheckpointTensors(
        CheckpointLayout(Path(directory), config, weight_map(Path(directory)), None)
    )


def _over_base(
    kind: HeadKind,
    changed: dict[str, Tensor],
    base_dir: Path,
    target_config: Mapping[str, Any],
) -> tuple[Mapping[str, object], dict[str, Tensor]]:
    """The base's config and tensors, with changed tensors replaced."""
    stored = _stored(base_dir)
    written = {}
    for name, of_base in kind.names(stored.layout.weight_map).items():
        value = stored.raw(of_base)
        written[of_base] = _stored_as(changed.pop(name, value).view(value.shape), value.dtype)
    left = sorted(changed.keys() - MAPS)
    if left:
        raise OutriderError(
            f"{base_dir}: the base has no tensor {', '.join(left)}: it is not a base of this head"
        )
    path = base_dir / "config.json"
    config = kind.served_config(stored.layout.config, target_config, path)
    return config, written


def _stored_as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().cpu().to(dtype).contiguous().clone()
