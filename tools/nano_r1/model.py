"""Nano R1's shape, training forward pass and checkpoint.

16 layers and one MTP layer. The model is deep and narrow, so that a target step costs as much as
many draft steps, as with R1's 61 layers. The latent rank 512 and the 64 rotary dimensions are R1's:
vLLM's CPU kernel for MLA supports no others.

    model = NanoR1()
    hidden_NH = model(token_ids_N, lengths)
    save_target(model, tokenizer, "target")

N tokens of several sequences are concatenated without padding; attention runs per sequence.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from outrider.common.files import publish
from outrider.speculators.kinds.mtp.checkpoint import (
    KEPT_IN_FLOAT32,
    experts_apart,
    mtp_checkpoint_tensors,
)
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.layers.attention import RMSNorm
from outrider.speculators.layers.decoder_layer import DecoderLayer

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "vocab_size": 4096,
    "hidden_size": 192,
    "num_hidden_layers": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "intermediate_size": 384,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "moe_layer_freq": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rope_interleave": True,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "num_nextn_predict_layers": 1,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
"""config.json. vLLM reads topk_method and scoring_func; in transformers the routing is fixed."""


class NanoR1(nn.Module):
    """Target and MTP layer, trained together.

    The MTP layer's loss has no gradient with respect to the target.
    """

    def __init__(self) -> None:
        super().__init__()
        vocab = CONFIG["vocab_size"]
        hidden = CONFIG["hidden_size"]
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(CONFIG, index) for index in range(CONFIG["num_hidden_layers"])
        )
        self.norm = RMSNorm(hidden, CONFIG["rms_norm_eps"])
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.mtp = MTPSpeculator(CONFIG)
        self._initialise()

    def _initialise(self) -> None:
        # Each layer adds twice to the residual stream. Scaling by 1/sqrt(2L) keeps its variance 1.
        shrink = (2 * CONFIG["num_hidden_layers"]) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                adds = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj"))
                nn.init.normal_(parameter, std=0.04 * (shrink if adds else 1.0))

    def forward(self, token_ids_N: Tensor, lengths: list[int]) -> Tensor:
        """Hidden states after the final norm [N, H], of concatenated sequences."""
        x_NH = self.embed_tokens(token_ids_N)
        layers = cast(Iterable[DecoderLayer], self.layers)
        for layer in layers:
            x_NH = self._layer(layer, x_NH, lengths)
        return self.norm(x_NH)

    def first_draft(self, token_ids_N: Tensor, hidden_NH: Tensor, lengths: list[int]) -> Tensor:
        """The MTP layer's states [N, H], which draft two tokens ahead.

        The last row of each sequence is meaningless, because it has no next token.
        """
        embedding_NH = F.embedding(token_ids_N.roll(-1), self.embed_tokens.weight.detach())
        x_NH = self.mtp.inputs(embedding_NH, hidden_NH.detach(), positions(lengths))
        return self.mtp.norm(self._layer(self.mtp.block, x_NH, lengths))

    def _layer(self, layer: DecoderLayer, x_NH: Tensor, lengths: list[int]) -> Tensor:
        q, k, v = layer.project(x_NH, positions(lengths))
        sequences = zip(
            q[None].split(lengths, 2),
            k[None].split(lengths, 2),
            v[None].split(lengths, 2),
            strict=True,
        )
        scale = self.mtp.softmax_scale
        attended = [
            F.scaled_dot_product_attention(*sequence, is_causal=True, scale=scale)[0]
            for sequence in sequences
        ]
        return layer.finish_layer(x_NH, torch.cat(attended, 1))


def positions(lengths: list[int]) -> Tensor:
    """Positions of concatenated sequences, from 0 in each."""
    return torch.cat([torch.arange(length) for length in lengths])


def save_target(model: NanoR1, tokenizer: PreTrainedTokenizerFast, out_dir: Path) -> None:
    """Publishes the checkpoint in bf16 under DeepSeek's names.

    Tokenizer, chat template and generation config are included. DeepSeek also ships copies of
    embedding and head for the MTP layer, which are omitted here: all loaders use the target's.
    """
    prefix = f"model.layers.{CONFIG['num_hidden_layers']}."
    views = mtp_checkpoint_tensors(model.mtp.state_dict())
    tensors = {prefix + suffix: tensor for suffix, tensor in views.items()}
    tensors |= layer_tensors(cast(nn.ModuleList, model.layers))
    tensors |= {
        "model.embed_tokens.weight": model.embed_tokens.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.lm_head.weight,
    }
    generation = {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
    }
    with publish(Path(out_dir)) as temporary:
        tokenizer.save_pretrained(temporary)
        save_file(stored(tensors), temporary / "model.safetensors", metadata={"format": "pt"})
        for name, value in (("config.json", CONFIG), ("generation_config.json", generation)):
            (temporary / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def layer_tensors(layers: nn.ModuleList) -> dict[str, Tensor]:
    """Views of the layers' tensors under the checkpoint's names."""
    tensors: dict[str, Tensor] = {}
    for index, layer in enumerate(layers):
        for suffix, tensor in layer.state_dict().items():
            for name, view in experts_apart(suffix, tensor).items():
                tensors[f"model.layers.{index}.{name}"] = view
    return tensors


def stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the checkpoint's precision: bf16, and float32 for the routing bias."""
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        dtype = torch.float32 if name.endswith(KEPT_IN_FLOAT32) else torch.bfloat16
        copies[name] = tensor.detach().to(dtype).contiguous().clone()
    return copies
