"""Tokenized sequences with a mask, as vLLM's speculators writes them."""

from outrider.data.exchange import Exchange, Reject
from tests.data.formats.test_elsewhere import read_rows


def row(mask, **about):
    ids = [10 + at for at in range(len(mask))]
    metadata = {"finish_reason": "stop", "sampling_params": {"temperature": 0.6}, **about}
    conversation = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}]
    return {
        "id": "c_gen0",
        "primary_id": "c",
        "input_ids": ids,
        "loss_mask": mask,
        "conversations": conversation,
        "metadata": metadata,
    }


def test_the_masks_last_ones_are_the_response(tmp_path):
    rows = [row([0, 0, 1, 1, 1]), row([0, 1, 0, 1], finish_reason="length"), row([0, 1, 0])]
    first, second, unanswered = read_rows(tmp_path, rows)
    assert isinstance(first, Exchange) and isinstance(second, Exchange)
    assert (first.prompt_token_ids, first.completion_token_ids) == ([10, 11], [12, 13, 14])
    assert (second.prompt_token_ids, second.completion_token_ids) == ([10, 11, 12], [13])
    assert (first.finish_reason, second.finish_reason) == ("stop", "length")
    assert first.temperature == 0.6
    assert isinstance(unanswered, Reject) and unanswered.reason == "incomplete_pair"
