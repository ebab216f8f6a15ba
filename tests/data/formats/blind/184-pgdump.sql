--
-- PostgreSQL database dump
--

-- Dumped from database version 16.4 (Debian 16.4-1.pgdg120+1)
-- Dumped by pg_dump version 16.4 (Debian 16.4-1.pgdg120+1)

SET statement_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Data for Name: app_users; Type: TABLE DATA; Schema: public; Owner: app
--

COPY public.app_users (id, name, created_at) FROM stdin;
1	Jón	2026-01-04 10:00:00+00
2	Sigrún	2026-02-11 09:30:00+00
\.


--
-- Data for Name: llm_calls; Type: TABLE DATA; Schema: public; Owner: app
--

COPY public.llm_calls (id, created_at, chat_id, user_id, model, messages, params, response_text, reasoning, finish_reason, error) FROM stdin;
501	2026-09-14 08:20:00.417+00	c-77	1	Qwen/QwQ-32B	[{"role": "system", "content": "Svaraðu stutt.\\tEin setning."}, {"role": "user", "content": "Hvað heitir hæsta fjall Íslands?\\n(\\"tindur\\")"}]	{"temperature": 0.6, "top_p": 0.95}	\n\nHvannadalshnúkur.	Hæsti tindur: Hvannadalshnúkur, 2110 m.\n	stop	\N
502	2026-09-14 08:20:10.500+00	c-77	1	Qwen/QwQ-32B	[{"role": "system", "content": "Svaraðu stutt.\\tEin setning."}, {"role": "user", "content": "Hvað heitir hæsta fjall Íslands?\\n(\\"tindur\\")"}, {"role": "assistant", "content": "\\n\\nHvannadalshnúkur."}, {"role": "user", "content": "Hvað er hann hár?"}]	{"temperature": 0.6, "top_p": 0.95}	\n\n2110 m.	2110 m.\n	stop	\N
503	2026-09-14 08:20:20.500+00	c-78	2	Qwen/QwQ-32B	[{"role": "user", "content": "C:\\\\temp\\\\n að hverju?"}]	{"temperature": 0.6, "top_p": 0.95}	\N	\N	\N	upstream 502: <html>\n<h1>Bad Gateway</h1></html>
504	2026-09-14 08:20:30.500+00	c-78	2	Qwen/QwQ-32B	[{"role": "user", "content": "C:\\\\temp\\\\n að hverju?"}]	{"temperature": 0.6, "top_p": 0.95}	\n\nMöppa fyrir bráðabirgðaskrár: `C:\\temp`.	C:\\temp er mappa.\n	stop	\N
\.


--
-- Name: llm_calls_id_seq; Type: SEQUENCE SET; Schema: public; Owner: app
--

SELECT pg_catalog.setval('public.llm_calls_id_seq', 504, true);


--
-- PostgreSQL database dump complete
--
