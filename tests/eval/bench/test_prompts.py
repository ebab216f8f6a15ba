"""The customer's sampling, as evaluation sends it again."""

from datasets import Dataset

from outrider.eval.bench.prompts import customers_sampling
from outrider.serving import client
from outrider.serving.client import complete

HELDOUT = Dataset.from_list(
    [{"temperature": 0.6, "top_p": 0.95, "top_k": top_k} for top_k in (0, 0, 20, 20, 20, 50, 50)]
)


def test_the_most_frequent_combination_is_sent_with_every_parameter(monkeypatch):
    sent = []

    def post(url, path, body, timeout_s):
        sent.append(body)
        choice = {"prompt_token_ids": [1], "token_ids": [2], "text": "", "finish_reason": "stop"}
        return {"choices": [choice]}

    monkeypatch.setattr(client, "post", post)
    complete("http://localhost", "r1", [[1]], customers_sampling(HELDOUT), max_tokens=4)
    named = {key: sent[0][key] for key in ("temperature", "top_p", "top_k", "min_p")}
    assert named == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
    assert sent[0]["repetition_penalty"] == 1.0  # the server's default may be another
