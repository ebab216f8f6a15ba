"""Nano R1's own forward pass and its checkpoint, against transformers reading that checkpoint."""

import json

import torch
from transformers import AutoTokenizer, DeepseekV3ForCausalLM

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tools.nano_r1.build import completion_rows
from tools.nano_r1.chat import build_tokenizer
from tools.nano_r1.model import NanoR1, save_target
from tools.unrolled import unroll


def test_checkpoint_computes_what_was_trained(tmp_path):
    torch.manual_seed(0)
    model = NanoR1()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name:
                tensor.add_(0.2 * torch.randn_like(tensor))
            if not name.endswith("e_score_correction_bias"):
                tensor.copy_(tensor.bfloat16())  # as stored
    save_target(model, build_tokenizer(["one two three"] * 10), tmp_path / "target")

    lengths = [40, 25]
    ids_N = torch.randint(3, 4096, (sum(lengths),))
    reference = DeepseekV3ForCausalLM.from_pretrained(
        tmp_path / "target", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        ours = model(ids_N, lengths)
        theirs = [
            reference.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            for ids in ids_N.split(lengths)
        ]
        torch.testing.assert_close(ours, torch.cat(theirs), rtol=1e-3, atol=1e-3)

        # The MTP layer as it is trained here is the depth-0 step of the unroll that serves.
        first = model.first_draft(ids_N, ours, lengths).split(lengths)
        mtp = load_mtp(tmp_path / "target")
        ends = load_target_ends(tmp_path / "target")
        for ids, hidden, state in zip(ids_N.split(lengths), theirs, first, strict=True):
            position = torch.arange(len(ids))[None]
            (u,) = unroll(
                mtp,
                ends,
                token_ids_BT=ids[None],
                inputs_BTX=hidden[None],
                sequence_BT=torch.zeros_like(position),
                position_BT=position,
                depth=1,
            )
            torch.testing.assert_close(state[:-2], u[0, :-2], rtol=1e-3, atol=1e-3)


def test_only_completion_tokens_carry_loss():
    batch = [([0] * 6, 4), ([0] * 5, 2), ([0] * 3, 3)]
    # First sequence: tokens 4 and 5; second: 2, 3, 4 (offset 6); the third ends in its prompt.
    assert (completion_rows(batch, ahead=1) + 1).tolist() == [4, 5, 8, 9, 10]
    assert (completion_rows(batch, ahead=2) + 2).tolist() == [5, 9, 10]


def test_the_shipped_target_is_r1_in_small(nano_r1):
    config = json.loads((nano_r1 / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert (
        config["kv_lora_rank"],
        config["qk_rope_head_dim"],
        config["num_nextn_predict_layers"],
    ) == (512, 64, 1)
    assert (nano_r1 / "model.safetensors").stat().st_size < 25e6
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "thought\n</think>\n\nanswer"},
        {"role": "user", "content": "two"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<｜begin▁of▁sentence｜>S<｜User｜>one<｜Assistant｜>\n\nanswer<｜end▁of▁sentence｜><｜User｜>two<｜Assistant｜><think>\n"
    )
    assert build_tokenizer(["one"]).chat_template == tokenizer.chat_template, "as it is built"
    assert tokenizer.encode(text, add_special_tokens=False)[0] == config["bos_token_id"]
