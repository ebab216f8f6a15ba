"""A target without weights: tokenizer, chat template and configs like nano R1's."""

import json
from pathlib import Path

import pytest

from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.logs import WORDS, screenings
from tools.nano_r1 import chat


@pytest.fixture(scope="session")
def text_target(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("text_target")
    texts = [
        WORDS,
        *(
            text
            for messages, *rest in screenings(40)
            for text in (*(message["content"] for message in messages), *rest)
        ),
    ]
    chat.build_tokenizer(texts, vocab_size=1024).save_pretrained(directory)
    (directory / "config.json").write_text(
        json.dumps({"vocab_size": 1024, "max_position_embeddings": 2048})
    )
    (directory / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_p": 0.95})
    )
    return directory


@pytest.fixture(scope="session")
def builder(text_target) -> SequenceBuilder:
    return SequenceBuilder(text_target)
