"""Rows of known producers that are not read, and the shortest way to rows that are.

A row is recognized by names of its keys (row_fields.py), in itself or in an object inside it.
"""

GATEWAY = "put a gateway that logs request and response in front of the endpoint"

RENAME = (
    "ShareGPT's conversations/from/value: rename them to messages/role/content, human to user, and"
    " gpt to assistant, and make system the first message"
)
WRITE_MESSAGES = (
    'write each row as {"messages": [{"role": "user", "content": "..."}, {"role": "assistant",'
    ' "content": "..."}]}'
)

SIDES_OR_MESSAGES = (
    "if they are the API's request and response, rename them to request and response; if they are"
    f" texts, {WRITE_MESSAGES}"
)

CHAT_EXPORT = (
    "conversations as a chat interface shows them, without the requests (system prompt, sampling):"
    " log the endpoint's /v1/chat/completions"
)

FASTCHAT = (
    "FastChat's conversations, whose texts are stripped and whose prompts have its own template:"
    " log the endpoint's /v1/chat/completions"
)

PYDANTIC_AI = (
    "Pydantic AI's messages, without sampling parameters: log the endpoint's /v1/chat/completions,"
    " or export the spans of its instrumentation"
)

LANGGRAPH = (
    "LangGraph's states, without the agent's prompt and sampling parameters: log the endpoint's"
    " /v1/chat/completions, or export the runs from LangSmith"
)

CONTINUE = (
    "Continue's development data, whose prompt is not what was sent, without reasoning: log the"
    " endpoint's /v1/chat/completions"
)

TRAJECTORY = (
    "an agent's trajectory, in which requests are parts of one conversation: log the endpoint's"
    " /v1/chat/completions, or write openai_pairs, {request, response}, of each of its responses"
)

N8N = "n8n's executions: log the endpoint's /v1/chat/completions"

AZURE = (
    "Azure API Management's log without texts: enable Log LLM messages in the API's Azure Monitor"
    " settings, with Log prompts and Log completions"
)

AZURE_IDS = "Azure's LLM log: export its columns CorrelationId and SequenceNumber, too"

AZURE_OPENAI = (
    "Azure OpenAI's diagnostic log, without texts: put a gateway in front that logs request and"
    " response bodies, for instance API Management with log-to-eventhub"
)

LLM_LOGS = (
    "rows of the tool llm, whose prompt is a conversation's newest message alone: log the"
    " endpoint's /v1/chat/completions"
)

NEW_API = (
    "New API's or One API's table of usage, which has no texts: put a gateway that logs request"
    " and response behind it, or start the engine with its request log"
)

LANGCHAIN_HISTORY = (
    "LangChain's histories of chats, without the requests (system prompt, sampling, time): log the"
    " endpoint's /v1/chat/completions"
)

HIGRESS = (
    "Higress's ai_log, which has the last question and the answer's text, not the messages:"
    f" {GATEWAY}, or start the engine with its request log"
)

SHAPES: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"event_type", "event_time_unix_ms", "event_source"}),
        "Dynamo's trace of requests without texts: set DYN_REQUEST_TRACE_RECORDS=request_payload",
    ),
    (frozenset({"ai_log"}), HIGRESS),
    (frozenset({"options_json", "prompt", "datetime_utc"}), LLM_LOGS),
    (frozenset({"token_name", "quota", "channel_id"}), NEW_API),
    (frozenset({"session_id", "history"}), LANGCHAIN_HISTORY),
    (
        frozenset({"export_arn", "item_count"}),
        "the manifest of an export of DynamoDB, whose rows are the files in its folder data",
    ),
    (frozenset({"chosen", "rejected"}), "preference data, which the target has not generated"),
    (
        frozenset({"doc", "resps"}),
        "samples of an evaluation, whose prompts are not traffic: log the endpoint's requests",
    ),
    (
        frozenset({"input_lens", "output_lens"}),
        "a benchmark's result, whose prompts are not traffic: log the endpoint's requests",
    ),
    (
        frozenset({"benchmarks", "args"}),
        "a benchmark's result, whose prompts are not traffic: log the endpoint's requests",
    ),
    (frozenset({"gen_params", "state", "tstamp"}), FASTCHAT),
    (frozenset({"parts", "kind", "run_id"}), PYDANTIC_AI),
    (frozenset({"values", "checkpoint", "next"}), LANGGRAPH),
    (frozenset({"event_name", "schema", "prompt", "completion"}), CONTINUE),
    (frozenset({"prompt", "llm_response"}), WRITE_MESSAGES),
    (frozenset({"instruction", "output"}), f"Alpaca's fields: {WRITE_MESSAGES}"),
    *(
        (
            frozenset({asked, "generation"}),
            f"generations without the messages that were sent: {WRITE_MESSAGES}",
        )
        for asked in ("problem", "question", "instruction", "prompt")  # NeMo-Skills, distilabel
    ),
    (frozenset({"question", "answer"}), WRITE_MESSAGES),
    (frozenset({"prompt", "completion"}), WRITE_MESSAGES),
    (frozenset({"prompt", "response"}), WRITE_MESSAGES),
    (
        frozenset({"contents", "candidates"}),
        "Gemini's API: log the endpoint's /v1/chat/completions",
    ),
    (
        frozenset({"id", "timestamp", "type", "body"}),
        "Langfuse's raw events, which hold an observation in pieces: export the observations",
    ),
    (
        frozenset({"completion_id", "sequence", "role"}),
        "New Relic's messages, each in an event of its own, without sampling parameters: log the"
        " endpoint's /v1/chat/completions",
    ),
    (
        frozenset({"type", "model_identifier", "input"}),
        "LM Studio's stream of prompts and outputs, without sampling parameters: log the"
        " endpoint's /v1/chat/completions",
    ),
    (
        frozenset({"http_streamed_trace_segment"}),
        "Envoy's streamed taps, which cut bodies into pieces: set streaming: false in the tap",
    ),
    (
        frozenset({"schema_type", "model_id", "input", "output"}),
        "Bedrock's invocation log: write openai_pairs, {request, response}, from inputBodyJson and"
        " outputBodyJson",
    ),
    (
        frozenset({"run_type", "inputs", "outputs"}),
        "LangSmith runs: write openai_pairs, {request, response}, from inputs and outputs",
    ),
    (
        frozenset({"span_kind", "attributes"}),
        "OpenInference spans whose input.value and output.value are not the request and response:"
        " instrument the OpenAI client",
    ),
    (
        frozenset({"resource", "scope_spans"}),
        "batches of spans as Langfuse keeps them: export the observations",
    ),
    (frozenset({"trace_id", "value", "data_type"}), "Langfuse scores: export the observations"),
    (
        frozenset({"request_body", "response_body", "gateway"}),
        "Cloudflare's encrypted bodies: decrypt them as its Logpush guide describes, and write the"
        " objects under the same keys",
    ),
    (
        frozenset({"tokens_in", "tokens_out"}),
        "Cloudflare's list of logs, which has no bodies: get the request and response of each id,"
        " or use Logpush",
    ),
    (frozenset({"request_length", "response_length", "api_name"}), AZURE_OPENAI),
    (frozenset({"category", "correlation_id", "properties"}), AZURE),
    (
        frozenset({"text_payload", "split"}),
        "entries that Cloud Logging has split: write one entry a line, the oldest first, for"
        " example with `jq -c '.[]'`",
    ),
    (
        frozenset({"request_parameters", "e2e_latency"}),
        "SGLang's metrics of requests, without texts: start SGLang with --log-requests"
        " --log-requests-level 3 --log-requests-format json",
    ),
    (frozenset({"request_messages", "response_messages"}), AZURE_IDS),
    (
        frozenset({"inputs", "generated_text"}),
        "TGI's /generate: log the endpoint's /v1/chat/completions",
    ),
    (
        frozenset({"model", "message", "done"}),
        "Ollama's responses without their requests: log the endpoint's /v1/chat/completions",
    ),
    (
        frozenset({"message_tree_id", "role", "text"}),
        "OASST's trees (message_tree_id), which people wrote: they are not the target's traffic",
    ),
    (
        frozenset({"query", "answer", "conversation_id"}),
        "Dify's query and answer, without the prompt that its app builds: log the endpoint's"
        " /v1/chat/completions",
    ),
    (frozenset({"message_id", "is_created_by_user"}), CHAT_EXPORT),  # LibreChat
    (frozenset({"flow_id", "sender", "text"}), CHAT_EXPORT),  # Langflow
    (frozenset({"workflow_data", "finished"}), N8N),
    (frozenset({"workflow_id", "finished", "mode"}), N8N),
    (frozenset({"trajectory_format", "messages"}), TRAJECTORY),  # mini-swe-agent
    (frozenset({"trajectory", "history"}), TRAJECTORY),  # SWE-agent
    (frozenset({"input", "output"}), SIDES_OR_MESSAGES),
    (frozenset({"inputs", "outputs"}), SIDES_OR_MESSAGES),
)
"""Names (row_fields.py) of known rows that are not read, and the way to a format that is; the first
match counts."""
