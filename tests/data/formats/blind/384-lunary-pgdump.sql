--
-- PostgreSQL database dump
--

-- Dumped from database version 15.12
-- Dumped by pg_dump version 15.12

SET statement_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Data for Name: external_user; Type: TABLE DATA; Schema: public; Owner: lunary
--

COPY public.external_user (id, created_at, project_id, external_id, last_seen, props) FROM stdin;
17	2026-10-14 10:19:28.412+02	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	anna@kunde.example	2026-10-14 10:22:07.412+02	{"name": "Anna"}
18	2026-10-14 10:19:29.412+02	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	bo@kunde.example	2026-10-14 10:23:37.412+02	\N
\.


--
-- Data for Name: run; Type: TABLE DATA; Schema: public; Owner: lunary
--

COPY public.run (id, created_at, ended_at, tags, project_id, status, name, error, input, output, params, type, parent_run_id, prompt_tokens, completion_tokens, cost, external_user_id, feedback, is_public, template_version_id, runtime, metadata) FROM stdin;
81853c75-5f56-c5c4-a3be-447fa6ebc74c	2026-10-14 10:21:07.412+02	2026-10-14 10:21:11.412+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	success	\N	\N	\N	\N	\N	thread	\N	\N	\N	\N	17	\N	f	\N	langchain-py	\N
e366d03e-3858-e56e-406a-328f3dd31159	2026-10-14 10:21:07.512+02	2026-10-14 10:21:11.512+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	success	\N	\N	{"role": "user", "content": "Explain the difference between `==` and `is` in Python."}	{"role": "assistant", "content": "`==` asks whether two objects are *equal*, `is` whether they are the *same object*:\\n\\n```python\\na = [1]; b = [1]\\na == b   # True\\na is b   # False\\n```"}	\N	chat	81853c75-5f56-c5c4-a3be-447fa6ebc74c	\N	\N	\N	17	{"thumb": "up"}	f	\N	langchain-py	\N
c5e0a1ba-2722-cc02-f368-52aaea7004d0	2026-10-14 10:21:07.612+02	2026-10-14 10:21:11.612+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	success	deepseek-ai/DeepSeek-R1	\N	[{"role": "system", "content": "You are the assistant of Nordwind GmbH. Answer briefly."}, {"role": "user", "content": "Explain the difference between `==` and `is` in Python."}]	{"role": "assistant", "content": "<think>\\n== compares values via __eq__, is compares identity. Example with lists. Small ints cached.\\n</think>\\n\\n`==` asks whether two objects are *equal*, `is` whether they are the *same object*:\\n\\n```python\\na = [1]; b = [1]\\na == b   # True\\na is b   # False\\n```"}	{"temperature": 0.6, "max_tokens": 4096}	llm	e366d03e-3858-e56e-406a-328f3dd31159	22	68	\N	17	\N	f	\N	langchain-py	\N
5ebf2055-6875-3885-72ef-035d8b14b4cb	2026-10-14 10:22:07.412+02	2026-10-14 10:22:11.412+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	success	deepseek-ai/DeepSeek-R1	\N	[{"role": "system", "content": "You are the assistant of Nordwind GmbH. Answer briefly."}, {"role": "user", "content": "Explain the difference between `==` and `is` in Python."}, {"role": "assistant", "content": "`==` asks whether two objects are *equal*, `is` whether they are the *same object*:\\n\\n```python\\na = [1]; b = [1]\\na == b   # True\\na is b   # False\\n```"}, {"role": "user", "content": "Give me a regular expression for ISO dates like 2026-10-14."}]	{"role": "assistant", "content": "<think>\\nSimple: \\\\d{4}-\\\\d{2}-\\\\d{2}. Better to bound month and day: (0[1-9]|1[0-2])-(0[1-9]|[12]\\\\d|3[01]).\\n</think>\\n\\n`^\\\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\\\d|3[01])$`"}	{"temperature": 0, "max_tokens": 4096}	llm	e366d03e-3858-e56e-406a-328f3dd31159	23	42	\N	17	\N	f	\N	langchain-py	\N
712a5ec2-3606-b323-8146-5eb040f7fb9e	2026-10-14 10:23:07.412+02	2026-10-14 10:23:11.412+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	error	deepseek-ai/DeepSeek-R1	{"message": "Connection error.", "stack": "..."}	[{"role": "system", "content": "You are the assistant of Nordwind GmbH. Answer briefly."}, {"role": "user", "content": "Why is the sky red at sunset?"}]	\N	{"temperature": 0.6, "max_tokens": 4096}	llm	\N	15	54	\N	18	\N	f	\N	langchain-py	\N
3d524035-f4e5-7d34-88b5-0b629db7ae0a	2026-10-14 10:23:37.412+02	2026-10-14 10:23:41.412+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	success	deepseek-ai/DeepSeek-R1	\N	[{"role": "user", "content": "Übersetze ins Englische: „Wer rastet, der rostet.“"}]	{"role": "assistant", "content": "<think>\\nThis is a German proverb. Literal: who rests, rusts. Common English counterpart: \\"Use it or lose it\\" or \\"A rolling stone gathers no moss\\".\\n</think>\\n\\n“He who rests grows rusty” — in everyday English: *Use it or lose it.*"}	\N	llm	\N	21	60	\N	18	\N	f	\N	langchain-py	\N
065dc016-fd47-9320-7116-0c862ab63ac7	2026-10-14 10:24:27.412+02	2026-10-14 10:24:31.412+02	{prod,"desk, eu"}	b98246ad-0d30-014a-7e7c-f23f1f2b7ad3	success	\N	\N	["Nordwind"]	\N	\N	embed	\N	\N	\N	\N	17	\N	f	\N	langchain-py	\N
\.


--
-- PostgreSQL database dump complete
--

