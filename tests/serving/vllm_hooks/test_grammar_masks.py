"""Masks of logged responses against vLLM's manager, which fills them token by token."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.data.formats.calls.sampling import grammar_of
from outrider.serving.vllm_hooks.grammar_masks import GrammarMasks, TokenMasks

VOCABULARY = 4096
PROMPT = [0, 17, 23]


def typed(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all of them required."""
    return {"type": "object", "properties": properties, "required": [*properties]}


TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
INTEGER: dict[str, Any] = {"type": "integer"}
FLAG: dict[str, Any] = {"type": "boolean"}


def array(items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def tag(begin: str, schema: dict[str, Any], end: str) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


JSON_SCHEMAS: list[Any] = [
    typed(company=TEXT, address=TEXT, date=TEXT, total=TEXT),
    typed(total=NUMBER, currency={"enum": ["EUR", "USD", "MYR"]}),
    typed(verdict={"enum": ["advance", "reject"]}, score=INTEGER),
    typed(paid=FLAG, due={"type": ["string", "null"]}),
    typed(items=array(typed(name=TEXT, price=NUMBER))),
    typed(items=array(TEXT, minItems=1, maxItems=3)),
    typed(inner=typed(inner=typed(inner=INTEGER))),
    typed(date={"type": "string", "format": "date"}),
    typed(time={"type": "string", "format": "date-time"}),
    typed(mail={"type": "string", "format": "email"}),
    typed(id={"type": "string", "format": "uuid"}),
    typed(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    typed(name={"type": "string", "minLength": 2, "maxLength": 8}),
    typed(age={"type": "integer", "minimum": 0, "maximum": 120}),
    typed(share={"type": "number", "minimum": 0, "maximum": 1}),
    typed(kind={"const": "receipt"}, value={"anyOf": [TEXT, INTEGER]}),
    typed(value={"oneOf": [FLAG, {"type": "null"}]}),
    {**typed(a=TEXT), "additionalProperties": False},
    {"type": "object", "properties": {"a": TEXT, "b": INTEGER}},
    {"type": "object", "additionalProperties": INTEGER},
    {**typed(node={"$ref": "#/$defs/node"}), "$defs": {"node": typed(value=INTEGER)}},
    {"$ref": "#/$defs/t", "$defs": {"t": {"enum": ["x", "y"]}}},
    array(INTEGER),
    array(array(FLAG, maxItems=2), maxItems=2),
    {"type": "array", "prefixItems": [TEXT, INTEGER], "items": False},
    {"enum": ["yes", "no", "maybe"]},
    {"type": "string"},
    {"type": "integer"},
    {"type": "null"},
    {},
    json.dumps(typed(as_text=TEXT)),
    # xgrammar does not support these, so vLLM falls back to guidance.
    typed(step={"type": "integer", "multipleOf": 5}),
    typed(code={"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}),
    typed(both={"allOf": [{"type": "integer"}, {"minimum": 3}]}),
]
GRAMMARS: list[dict[str, Any]] = [
    *({"json": schema} for schema in JSON_SCHEMAS),
    {"json_object": True},
    {"regex": "[0-9]{2}/[0-9]{2}/[0-9]{4}"},
    {"regex": "(yes|no)(, because .{1,20})?"},
    {"regex": r"\d+(\.\d\d)?"},
    {"choice": ["yes", "no"]},
    {"choice": ["advance", "advance with reservations", "reject"]},
    {"grammar": 'root ::= "a" root "b" | "c"'},
    {"grammar": 'root ::= number (" + " number)*\nnumber ::= [0-9]+'},
    {"grammar": 'root ::= [a-z]+ " " [^"]*'},
    {"grammar": 'start: "total: " NUMBER\nNUMBER: /[0-9]+/'},
    {
        "structural_tag": json.dumps(
            {
                "type": "structural_tag",
                "structures": [{"begin": "<f>", "schema": typed(a=INTEGER), "end": "</f>"}],
                "triggers": ["<f"],
            }
        )
    },
    {
        "structural_tag": json.dumps(
            {"type": "structural_tag", "format": tag("<f>", typed(b=FLAG), "</f>")}
        )
    },
    {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "any_text"}})},
    {
        "structural_tag": json.dumps(
            {
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": typed(total=NUMBER)},
            }
        )
    },
    {
        "structural_tag": json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<call"],
                    "tags": [tag("<call>", typed(q=TEXT), "</call>")],
                },
            }
        )
    },
    {"json": typed(a=TEXT), "disable_any_whitespace": False},
]

Drawn = tuple[list[int], torch.Tensor]
"""Token ids of a response, and vLLM's mask before each of them, [N, W]."""


@pytest.fixture(scope="module")
def draw(nano_r1: Path) -> Callable[..., Drawn]:
    """Draws a response that vLLM's manager allows, one token at a time."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    def drawn(grammar: dict[str, Any], begin: tuple[int, ...] = (), **settings: Any) -> Drawn:
        engine = EngineArgs(model=str(nano_r1), **settings).create_engine_config()
        manager = StructuredOutputManager(engine)
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**grammar))
        params._validate_structured_outputs(
            engine.model_config, engine.structured_outputs_config, manager.tokenizer
        )
        params.update_from_generation_config({}, manager.tokenizer.eos_token_id)
        request = Request("r", list(PROMPT), params, None)
        manager.grammar_init(request)
        structured = request.structured_output_request
        assert structured is not None
        structured.grammar = structured._grammar.result()
        end = manager.tokenizer.eos_token_id
        masks = []
        response: list[int] = []
        forced = list(begin)
        while len(response) < 40 and end not in response:
            words = manager.grammar_bitmask({"r": request}, ["r"], {})[0]
            masks.append(torch.from_numpy(words.copy())[: VOCABULARY // 32])
            allowed = [t for t in range(VOCABULARY) if words[t // 32] >> t % 32 & 1]
            # Ends where it can, or the random text would not.
            token = forced.pop(0) if forced else random.choice(allowed)
            token = end if end in allowed and not forced and len(response) > 20 else token
            request.append_output_token_ids(token)
            assert manager.accept_tokens(request, [token])
            response.append(token)
        return response, torch.stack(masks)

    return drawn


@pytest.fixture(scope="module")
def masks(nano_r1: Path) -> GrammarMasks:
    return GrammarMasks(nano_r1, VOCABULARY, {})


def masks_with(nano_r1: Path, **settings: Any) -> GrammarMasks:
    return GrammarMasks(nano_r1, VOCABULARY, settings)


def words_of(found: TokenMasks | None) -> torch.Tensor:
    assert found is not None
    return found.masks_MW[found.index_N]


def test_there_are_fifty_grammars() -> None:
    assert len(GRAMMARS) >= 50


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: json.dumps(grammar)[:60])
def test_masks_are_vllm_s_at_each_token(
    grammar: dict[str, Any], draw: Callable[..., Drawn], masks: GrammarMasks
) -> None:
    response, expected_NW = draw(grammar)
    found = masks.of(json.dumps(grammar), PROMPT + response, len(PROMPT))
    assert torch.equal(words_of(found), expected_NW)
    assert len(found.masks_MW) <= len(response) + 1


THINK, END_THINK = "<think>", "</think>"


@pytest.mark.parametrize("in_reasoning", [False, True])
def test_the_grammar_starts_after_the_reasoning_unless_it_is_enabled_there(
    in_reasoning: bool, draw: Callable[..., Drawn], nano_r1: Path, masks: GrammarMasks
) -> None:
    end = masks._tokenizer.convert_tokens_to_ids(END_THINK)
    settings = {"reasoning_parser": "deepseek_r1", "enable_in_reasoning": in_reasoning}
    grammar = {"json": typed(total=NUMBER)}
    begin = () if in_reasoning else (90, 91, 92, end)
    from vllm.config.structured_outputs import StructuredOutputsConfig

    response, expected_NW = draw(
        grammar, begin, structured_outputs_config=StructuredOutputsConfig(**settings)
    )
    own = masks_with(nano_r1, **settings)
    words_NW = words_of(own.of(json.dumps(grammar), PROMPT + response, len(PROMPT)))
    assert torch.equal(words_NW, expected_NW)
    free_N = (words_NW == -1).all(-1)
    assert free_N[: len(begin)].all() and not free_N[len(begin)]
    if begin:
        # Without the parser, vLLM would have forbidden the reasoning.
        assert masks.of(json.dumps(grammar), PROMPT + response, len(PROMPT)) is None
        # A prompt that closes the reasoning starts the grammar at once.
        closed = [*PROMPT, end]
        answer = response[len(begin) :]
        assert not (
            words_of(own.of(json.dumps(grammar), closed + answer, len(closed)))[0] == -1
        ).all()


def test_the_grammar_reads_a_token_of_the_answer_that_ends_the_reasoning(
    draw: Callable[..., Drawn], nano_r1: Path
) -> None:
    """As parsers with `reasoning_end_token_ids` find it: at a call, without an end token."""
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
    from vllm.parser.engine.parser_engine import ReasoningEnd
    from vllm.reasoning import ReasoningParser, ReasoningParserManager

    grammar = {"json": typed(total=NUMBER)}
    (brace, *_), _ = draw(grammar)

    class EndsAtBrace(ParserEngineReasoningAdapter):
        reasoning_end_token_ids = frozenset((brace,))

        def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
            ReasoningParser.__init__(self, tokenizer)

        def is_reasoning_end(self, input_ids: Any) -> bool:
            return False  # of the prompt

        def find_reasoning_end(self, token_ids: Any) -> ReasoningEnd:
            ids = list(token_ids)
            found = brace in ids
            return ReasoningEnd(ids.index(brace) if found else len(ids), found)

    ReasoningParserManager.register_module("ends_at_brace", module=EndsAtBrace)
    settings = {"reasoning_parser": "ends_at_brace"}
    begin = (brace + 1, brace + 2, brace)
    response, expected_NW = draw(
        grammar, begin, structured_outputs_config=StructuredOutputsConfig(**settings)
    )
    own = masks_with(nano_r1, **settings)
    words_NW = words_of(own.of(json.dumps(grammar), PROMPT + response, len(PROMPT)))
    assert torch.equal(words_NW, expected_NW)
    assert not (words_NW == -1).all(-1)[len(begin)]


@pytest.mark.parametrize(
    "grammar",
    [
        {"json": typed(tags={**array(TEXT), "uniqueItems": True})},
        {"json": "{not json"},
        {"json": {"type": "no such type"}},
        {"regex": "(unclosed"},
        {"grammar": "no grammar at all"},
        {"choice": []},
        {"structural_tag": "{}"},
        {"json_object": False},
        {"regex": "a", "choice": ["a"]},
        {"no such field": 1},
    ],
    ids=json.dumps,
)
def test_grammars_that_vllm_refuses_have_no_mask(
    grammar: dict[str, Any], masks: GrammarMasks
) -> None:
    assert masks.of(json.dumps(grammar), [*PROMPT, 90, 1], len(PROMPT)) is None


def test_a_response_that_its_grammar_forbids_has_no_mask(masks: GrammarMasks) -> None:
    grammar = json.dumps({"choice": ["yes", "no"]})
    encode = masks._tokenizer.encode
    for text, is_usable in (("yes", True), ("no", True), ("maybe", False), ("y", True)):
        ids = encode(text, add_special_tokens=False)
        assert (masks.of(grammar, PROMPT + ids, len(PROMPT)) is not None) is is_usable
        # The end token is allowed after a whole answer only.
        ended = masks.of(grammar, [*PROMPT, *ids, 1], len(PROMPT))
        assert (ended is not None) is (text in ("yes", "no"))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<f>", "schema": typed(a=TEXT), "end": "</f>"}],
                "triggers": ["<f"],
            }
        },
        {"structured_outputs": {"json": typed(a=TEXT)}},
        {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"structured_outputs": {"json_object": True}},
    ],
    ids=json.dumps,
)
def test_grammars_of_requests_are_those_of_vllm_s_protocol(fields: dict[str, Any]) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.sampling_params import StructuredOutputsParams

    messages = [{"role": "user", "content": "?"}]
    request = ChatCompletionRequest(model="r1", messages=messages, **fields)
    grammar = grammar_of(fields)
    assert grammar is not None
    assert StructuredOutputsParams(**json.loads(grammar)) == request.extract_structured_outputs()
