"""Token sequences: exchanges as the tokens that the engine read and generated.

Logged ids are used unchanged (`exact`). Otherwise (`retokenized`) the target's own chat template
renders the conversation (chat_template.py), and the response is reconstructed as R1 emitted it
(emitted_text.py).

    builder = SequenceBuilder(target_dir, hard_labels=True)
    sequence = builder.build(exchange)      # or raises Reject
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.data.exchange import BEAM_SEARCH, Exchange, Reject
from outrider.data.tokenize.chat_template import render_prompt
from outrider.data.tokenize.emitted_text import END_THINK, THINK, endings, opening_of, readings
from outrider.speculators.checkpoints.architectures import is_supported, transformers_model
from outrider.speculators.checkpoints.model_config import read_config, read_generation
from outrider.speculators.checkpoints.refusals import language_config

OPENED = f"{THINK}\n"
"""End of a prompt from R1's template; the response begins with reasoning."""

NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Values of parameters that neither the request nor the target's generation_config.json sets."""

ENDED_BELOW = 0.9
"""Share of a limit on tokens below which a text certainly ended. Texts have fewer tokens than were
generated where a parser stripped whitespace, or where the model did not write a text's own tokens:
a few, while a response that was cut has all of them."""

REGENERATE = "regenerate"
"""See `TokenSequence.fidelity`."""


@dataclass(frozen=True)
class TokenSequence:
    """One training sequence; only the completion is trained on."""

    token_ids: list[int]
    completion_start: int
    fidelity: str
    """`exact`: the engine's ids. `retokenized`: rendered and tokenized again. `regenerate`: not the
    target's completion; the target generates a new one before training (regenerate.py)."""
    prompt_text: str
    """The prompt as the engine read it, special tokens as text."""
    temperature: float
    top_p: float
    top_k: int
    """0: no limit."""
    constraint: str
    """What else shaped the tokens (exchange.SAMPLED_OTHERWISE); empty: nothing."""
    grammar: str
    """The grammar (`Exchange.grammar`) if it is all that did, else empty."""
    agrees_with_usage: bool | None
    """Whether the completion has as many tokens as the engine counted; None if not logged."""
    prompt_agrees_with_usage: bool | None = None
    """The same for the prompt."""


def load_tokenizer(target_dir: Path) -> Any:
    """The target's tokenizer; never runs code of the checkpoint."""
    from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedConfig  # takes seconds

    config = read_config(Path(target_dir) / "config.json")
    settings = None
    if config.get("model_type") and config["model_type"] not in CONFIG_MAPPING:
        # Otherwise read with the checkpoint's code.
        settings = PreTrainedConfig()
        if is_supported(config):
            _, settings = transformers_model(config)
    try:
        return AutoTokenizer.from_pretrained(target_dir, config=settings, trust_remote_code=False)
    except (KeyError, OSError, ValueError) as error:  # KeyError: of the configuration
        raise OutriderError(
            f"{target_dir}: no usable tokenizer ({error}); the target needs tokenizer.json"
        ) from None


def sampling_defaults(target_dir: Path, arguments: Mapping[str, Any]) -> dict[str, float]:
    """Values of the parameters that a request lacks, as in vLLM.

    They are those of the target's generation_config.json, or of the one in the folder that
    `generation_config` names; with `vllm`, there are none. `override_generation_config` has
    precedence (vllm/config/model.py, `get_diff_sampling_param`).
    """
    source = arguments.get("generation_config", "auto")
    folder = target_dir if source == "auto" else Path(source)
    path = folder / "generation_config.json"
    is_read = source != "vllm" and path.is_file()
    configured = {
        **(read_generation(path) if is_read else {}),
        **(arguments.get("override_generation_config") or {}),
    }
    return {
        name: neutral if configured.get(name) is None else configured[name]
        for name, neutral in NEUTRAL.items()
    }


class SequenceBuilder:
    """Builds token sequences for a target from its tokenizer and config.json.

    Without `hard_labels`, responses that something besides temperature, top_k and top_p shaped are
    rejected: their distribution is unknown, and probabilistic drafts are accepted against it.
    `generation` has the engine's arguments about sampling (`sampling_defaults`).
    """

    def __init__(
        self,
        target_dir: Path,
        hard_labels: bool = True,
        generation: Mapping[str, Any] | None = None,
    ):
        target_dir = Path(target_dir)
        self.hard_labels = hard_labels
        config = read_config(target_dir / "config.json")
        self.tokenizer = load_tokenizer(target_dir)
        if not self.tokenizer.chat_template:
            raise OutriderError(
                f"{target_dir}: the tokenizer has no chat template (chat_template in "
                "tokenizer_config.json)"
            )
        self._eos = self.tokenizer.eos_token_id  # slow to look up
        if self._eos is None:
            raise OutriderError(
                f"{target_dir}: the tokenizer has no end-of-sequence token (eos_token in"
                " tokenizer_config.json)"
            )
        self._encoder = self.tokenizer.backend_tokenizer
        asked = render_prompt(self.tokenizer, [{"role": "user", "content": "?"}], {})
        self.answer_mark = asked.rpartition("?")[2].removesuffix(OPENED) or "\0"
        """What the template writes between a question and its answer."""
        self._encoder.no_truncation()
        self._encoder.no_padding()
        language = language_config(config)
        self.vocabulary = language.get("vocab_size") or len(self.tokenizer)
        # One position is left for the token that the engine must generate when it replays a
        # sequence.
        self.longest = (language.get("max_position_embeddings") or math.inf) - 1
        self.defaults = sampling_defaults(target_dir, generation or {})

    def build(self, exchange: Exchange) -> TokenSequence:
        """Builds a sequence.

        Raises:
            Reject: If its tokens are unknown or do not fit the target.
        """
        prompt_ids = exchange.prompt_token_ids
        completion_ids = exchange.completion_token_ids
        exact = prompt_ids is not None and completion_ids is not None
        if prompt_ids is None:
            prompt_ids, prompt_text = self._prompt(exchange)
        else:
            self._check_vocabulary(prompt_ids)
            prompt_text = self.decode(prompt_ids)
        if exchange.regenerate:
            completion_ids = self._encode(
                END_THINK.join(filter(None, (exchange.reasoning, exchange.content)))
            )
        elif completion_ids is None:
            completion_ids = self.retokenize(exchange, prompt_text)
            _check_ended(exchange, len(completion_ids))
        else:
            self._check_vocabulary(completion_ids)
        if not completion_ids or not prompt_ids:
            raise Reject("empty_response" if prompt_ids else "empty_prompt")
        length = len(prompt_ids) + len(completion_ids)
        if length > self.longest:
            raise Reject("longer_than_target", f"{length} tokens, the limit is {self.longest}")
        temperature, top_p, top_k = self._sampling(exchange)
        constraint, grammar = self._constraint(exchange)
        counted = exchange.completion_tokens
        counted_before = exchange.prompt_tokens
        fidelity = "exact" if exact else "retokenized"
        return TokenSequence(
            token_ids=[*prompt_ids, *completion_ids],
            completion_start=len(prompt_ids),
            fidelity=REGENERATE if exchange.regenerate else fidelity,
            prompt_text=prompt_text,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            constraint=constraint,
            grammar=grammar,
            agrees_with_usage=None if counted is None else counted == len(completion_ids),
            prompt_agrees_with_usage=(
                None if counted_before is None else counted_before == len(prompt_ids)
            ),
        )

    def _sampling(self, exchange: Exchange) -> tuple[float, float, int]:
        """Returns the request's temperature, top_p and top_k."""
        temperature, top_p, top_k = (
            self._value(exchange, name) for name in ("temperature", "top_p", "top_k")
        )
        if temperature < 0 or not 0 < top_p <= 1:
            raise Reject("sampling_out_of_range", f"temperature {temperature:g}, top_p {top_p:g}")
        return temperature, top_p, int(top_k) if 0 < int(top_k) < self.vocabulary else 0

    def _constraint(self, exchange: Exchange) -> tuple[str, str]:
        """Returns what else shaped the tokens, and the grammar if it is all that did.

        A response to be regenerated cannot have a constraint: min_p and penalties are not in the
        table, from which the engine is asked.
        """
        penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        changed = [
            name for name in ("min_p", *penalties) if self._value(exchange, name) != NEUTRAL[name]
        ]
        constraint = exchange.constraint or ""
        detail = ""
        if not constraint and changed:
            constraint = "min_p" if changed[0] == "min_p" else "penalties"
            detail = f"{changed[0]} {self._value(exchange, changed[0]):g}"
        replayed = self.hard_labels and not exchange.regenerate and constraint != BEAM_SEARCH
        if constraint and not replayed:
            raise Reject(constraint, detail)
        return constraint, "" if changed else exchange.grammar or ""

    def _value(self, exchange: Exchange, name: str) -> float:
        """Returns a sampling parameter of the request, or the target's default."""
        logged: float | None = getattr(exchange, name)
        return self.defaults[name] if logged is None else logged

    def _prompt(self, exchange: Exchange) -> tuple[list[int], str]:
        """Returns the ids and text of a prompt without logged ids.

        The engine and this tokenizer encode text identically, so the logged count shows whether the
        endpoint's template opens `<think>`. R1's first templates did not.
        """
        if exchange.messages is None:
            if exchange.prompt_text is None:
                raise Reject("no_messages")
            return self._encode(exchange.prompt_text, exchange.prompt_is_raw), exchange.prompt_text
        text = render_prompt(self.tokenizer, exchange.messages, exchange.template_arguments)
        ids = self._encode(text)
        counted = exchange.prompt_tokens
        if counted is None or len(ids) == counted:
            return ids, text
        if not exchange.template_arguments.get("continue_final_message"):
            opened = text.endswith(OPENED)
            alternative = text.removesuffix(OPENED) if opened else text + OPENED
            alternative_ids = self._encode(alternative)
            if len(alternative_ids) == counted:
                return alternative_ids, alternative
        return ids, text

    def decode(self, token_ids: list[int]) -> str:
        """Decodes token ids, including special tokens."""
        text = self.tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def retokenize(self, exchange: Exchange, prompt_text: str) -> list[int]:
        """Returns the tokens of the completion's text, including the EOS token."""
        if exchange.tool_calls:
            raise Reject(
                "tool_calls_without_ids", "their original text is not logged: use return_token_ids"
            )
        if exchange.reasoning is None and exchange.content is None:
            raise Reject("empty_response")
        texts, only_if_counted = readings(exchange, opening_of(exchange, prompt_text))
        counted = exchange.completion_tokens
        end_token = [exchange.stop_reason if isinstance(exchange.stop_reason, int) else self._eos]
        self._check_vocabulary(end_token)
        likeliest = None
        for stop_string, ends in endings(exchange):
            for text in texts:
                ids = self._encode(text + stop_string) + (end_token if ends else [])
                if len(ids) == counted or (counted is None and not only_if_counted):
                    return ids
                likeliest = likeliest or ids
        if only_if_counted and exchange.reasoning:
            raise Reject(
                "not_finished",
                "the response is reasoning without </think>, and no token count shows its end",
            )
        if only_if_counted:
            raise Reject(
                "reasoning_missing",
                "the template opens <think>, but the response has neither reasoning nor </think>;"
                " log request and response where they leave the engine, or with the key"
                " reasoning_content",
            )
        # No reading has the logged count, so the target tokenized its text differently.
        # The reading with the nearest count would be wrong more often than right.
        return likeliest or []

    def _encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        # A third faster than `encode`, since it computes no offsets.
        return self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def _check_vocabulary(self, token_ids: list[int]) -> None:
        if max(token_ids, default=0) >= self.vocabulary or min(token_ids, default=0) < 0:
            raise Reject(
                "token_out_of_vocabulary",
                f"id {max(token_ids)}, but the target has {self.vocabulary}: another model's log?",
            )


def _check_ended(exchange: Exchange, tokens: int) -> None:
    """Raises a `Reject` for a text of as many tokens as its limit, whose end was not logged."""
    limit = exchange.token_limit
    if limit is not None and exchange.completion_tokens is None and tokens > ENDED_BELOW * limit:
        raise Reject(
            "not_finished",
            f"{tokens} tokens, and the request's limit is {limit:g}: the response may have been"
            " cut; log finish_reason, or the count of tokens",
        )
