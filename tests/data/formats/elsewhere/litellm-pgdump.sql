--
-- PostgreSQL database dump
--

-- Dumped from database version 16.4
-- Dumped by pg_dump version 16.4

SET statement_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Data for Name: LiteLLM_SpendLogs; Type: TABLE DATA; Schema: public; Owner: llmproxy
--

COPY public."LiteLLM_SpendLogs" (request_id, call_type, api_key, spend, total_tokens, prompt_tokens, completion_tokens, "startTime", "endTime", "completionStartTime", model, model_id, model_group, custom_llm_provider, api_base, "user", metadata, cache_hit, cache_key, request_tags, team_id, end_user, requester_ip_address, messages, response, session_id, status, mcp_namespaced_tool_name, proxy_server_request) FROM stdin;
chatcmpl-0	acompletion	88dc28	0	32	14	18	2026-07-01 10:00:00.25	2026-07-01 10:00:02.25	2026-07-01 10:00:01	deepseek-r1	m	deepseek-r1	hosted_vllm	http://vllm:8000/v1	default_user_id	{"user_api_key_alias": "app"}	None	Cache OFF	[]	acme	ada		{}	{"id": "chatcmpl-0", "object": "chat.completion", "created": 1782900000, "model": "deepseek-r1", "choices": [{"index": 0, "message": {"role": "assistant", "reasoning_content": "Two and two make four.\\n", "content": "\\n\\nIt is 4.", "tool_calls": []}, "logprobs": null, "finish_reason": "stop", "stop_reason": null}], "usage": {"prompt_tokens": 14, "total_tokens": 32, "completion_tokens": 18}}	s-1	success	\N	{"model": "deepseek-r1", "messages": [{"role": "user", "content": "Question 0: what is 2+2?"}], "temperature": 0.6, "top_p": 0.95, "max_tokens": 4096, "user": "ada"}
chatcmpl-1	acompletion	88dc28	0	32	14	18	2026-07-01 10:00:01.25	2026-07-01 10:00:03.25	2026-07-01 10:00:02	deepseek-r1	m	deepseek-r1	hosted_vllm	http://vllm:8000/v1	default_user_id	{"user_api_key_alias": "app"}	None	Cache OFF	[]	acme	ada		{}	{"id": "chatcmpl-1", "object": "chat.completion", "created": 1782900001, "model": "deepseek-r1", "choices": [{"index": 0, "message": {"role": "assistant", "reasoning_content": "Two and two make four.\\n", "content": "\\n\\nIt is 4.", "tool_calls": []}, "logprobs": null, "finish_reason": "stop", "stop_reason": null}], "usage": {"prompt_tokens": 14, "total_tokens": 32, "completion_tokens": 18}}	s-1	success	\N	{"model": "deepseek-r1", "messages": [{"role": "user", "content": "Question 1: what is 2+2?"}], "temperature": 0.6, "top_p": 0.95, "max_tokens": 4096, "user": "ada"}
chatcmpl-2	acompletion	88dc28	0	32	14	18	2026-07-01 10:00:02.25	2026-07-01 10:00:04.25	2026-07-01 10:00:03	deepseek-r1	m	deepseek-r1	hosted_vllm	http://vllm:8000/v1	default_user_id	{"user_api_key_alias": "app"}	None	Cache OFF	[]	acme	ada		{}	{"id": "chatcmpl-2", "object": "chat.completion", "created": 1782900002, "model": "deepseek-r1", "choices": [{"index": 0, "message": {"role": "assistant", "reasoning_content": "Two and two make four.\\n", "content": "\\n\\nIt is 4.", "tool_calls": []}, "logprobs": null, "finish_reason": "stop", "stop_reason": null}], "usage": {"prompt_tokens": 14, "total_tokens": 32, "completion_tokens": 18}}	s-1	success	\N	{"model": "deepseek-r1", "messages": [{"role": "user", "content": "Question 2: what is 2+2?"}], "temperature": 0.6, "top_p": 0.95, "max_tokens": 4096, "user": "ada"}
\.


--
-- PostgreSQL database dump complete
--

