--
-- PostgreSQL database dump
--

-- Dumped from database version 16.4
-- Dumped by pg_dump version 16.4

SET statement_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;

CREATE TABLE public.prompts (
    hash text NOT NULL,
    messages jsonb NOT NULL
);


CREATE TABLE public.requests (
    id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    user_id text,
    session_id uuid,
    prompt_hash text,
    model text,
    params jsonb,
    response jsonb
);


--
-- Data for Name: prompts; Type: TABLE DATA; Schema: public; Owner: gw
--

COPY public.prompts (hash, messages) FROM stdin;
255c796472a987e7ecd93e6c1cd63ac73aaed88395d8b624bfc0a7b0032592dd	[{"role": "system", "content": "You write shell commands."}, {"role": "user", "content": "Count lines with \\"error\\" in *.log, not in sub\\\\dirs; use a | pipe"}]
4808e2d43b6af65de939f590666f3827fd6e872d94738669d604feaf6e2e6871	[{"role": "user", "content": "Write a haiku about rain."}]
\.


--
-- Data for Name: requests; Type: TABLE DATA; Schema: public; Owner: gw
--

COPY public.requests (id, created_at, user_id, session_id, prompt_hash, model, params, response) FROM stdin;
1	2026-07-01 10:00:00.123+00	abe	bcd1a600-4389-4520-a72a-91bde005895a	255c796472a987e7ecd93e6c1cd63ac73aaed88395d8b624bfc0a7b0032592dd	deepseek-r1	{"top_p": 0.95, "max_tokens": 4096, "temperature": 0.6}	{"id": "chatcmpl-00e12", "model": "deepseek-r1", "usage": {"total_tokens": 125, "prompt_tokens": 30, "completion_tokens": 95}, "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "\\n\\nUse:\\n\\n```bash\\ncat *.log | grep -c \\"error\\"\\n```\\n\\nOn Windows: `findstr /c:\\"error\\" C:\\\\logs\\\\new\\\\*.log | find /c /v \\"\\"`", "tool_calls": [], "reasoning_content": "The user wants a count. Use `grep -c \\"error\\" *.log`; grep does not enter folders without -r.\\nA pipe: `cat *.log | grep -c \\"error\\"`, and a path like C:\\\\logs\\\\new needs quotes.\\n"}, "logprobs": null, "stop_reason": null, "finish_reason": "stop"}], "created": 1782900003}
2	2026-07-01 10:01:00.123+00	abe	bcd1a600-4389-4520-a72a-91bde005895a	4808e2d43b6af65de939f590666f3827fd6e872d94738669d604feaf6e2e6871	deepseek-r1	{"top_p": 0.95, "max_tokens": 4096, "temperature": 0.6}	{"id": "chatcmpl-01e05", "model": "deepseek-r1", "usage": {"total_tokens": 52, "prompt_tokens": 11, "completion_tokens": 41}, "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "\\n\\nRain taps on the roof,\\na slow and patient drummer,\\nnight leans in to hear.", "tool_calls": [], "reasoning_content": "A haiku has five, seven, five syllables. Rain on the roof, soft sounds, night.\\n"}, "logprobs": null, "stop_reason": null, "finish_reason": "stop"}], "created": 1782900063}
3	2026-07-01 10:02:00.123+00	bea	\N	255c796472a987e7ecd93e6c1cd63ac73aaed88395d8b624bfc0a7b0032592dd	deepseek-r1	{"top_p": 0.95, "max_tokens": 4096, "temperature": 0.6}	{"id": "chatcmpl-02e12", "model": "deepseek-r1", "usage": {"total_tokens": 125, "prompt_tokens": 30, "completion_tokens": 95}, "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "\\n\\nUse:\\n\\n```bash\\ncat *.log | grep -c \\"error\\"\\n```\\n\\nOn Windows: `findstr /c:\\"error\\" C:\\\\logs\\\\new\\\\*.log | find /c /v \\"\\"`", "tool_calls": [], "reasoning_content": "The user wants a count. Use `grep -c \\"error\\" *.log`; grep does not enter folders without -r.\\nA pipe: `cat *.log | grep -c \\"error\\"`, and a path like C:\\\\logs\\\\new needs quotes.\\n"}, "logprobs": null, "stop_reason": null, "finish_reason": "stop"}], "created": 1782900123}
4	2026-07-01 10:03:00.123+00	bea	\N	deadbeef	deepseek-r1	{"top_p": 0.95, "max_tokens": 4096, "temperature": 0.6}	{"id": "chatcmpl-03e07", "model": "deepseek-r1", "usage": {"total_tokens": 43, "prompt_tokens": 12, "completion_tokens": 31}, "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "\\n\\n10 miles are about 16.1 kilometres.", "tool_calls": [], "reasoning_content": "One mile is 1.609 kilometres. Ten miles are 16.09 kilometres.\\n"}, "logprobs": null, "stop_reason": null, "finish_reason": "stop"}], "created": 1782900183}
5	2026-07-01 10:04:00.123+00	\N	\N	4808e2d43b6af65de939f590666f3827fd6e872d94738669d604feaf6e2e6871	deepseek-r1	{"top_p": 0.95, "max_tokens": 4096, "temperature": 0.6}	\N
\.


SELECT pg_catalog.setval('public.requests_id_seq', 5, true);


--
-- PostgreSQL database dump complete
--
