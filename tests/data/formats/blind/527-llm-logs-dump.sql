PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE [_llm_migrations] (
   [name] TEXT PRIMARY KEY,
   [applied_at] TEXT
);
INSERT INTO _llm_migrations VALUES('m001_initial','2026-09-14 07:21:44.102938+00:00');
CREATE TABLE [conversations] (
   [id] TEXT PRIMARY KEY,
   [name] TEXT,
   [model] TEXT
);
INSERT INTO conversations VALUES('01kqapts3n0hfxe7vn17z5yrmh','My pod is in CrashLoopBackOff with exit code 137. What does it mean?','deepseek-r1');
INSERT INTO conversations VALUES('01kr3qgz0389ckd3a39ab0hybp','Two dice are rolled. What is the probability that the sum is at least 9?','deepseek-r1');
INSERT INTO conversations VALUES('01k9vda7cs5r4vmm6y83qg9438','Write a haiku about a late bus in the rain.','gpt-4o-mini');
CREATE TABLE IF NOT EXISTS "responses" (
   [id] TEXT PRIMARY KEY,
   [model] TEXT,
   [prompt] TEXT,
   [system] TEXT,
   [prompt_json] TEXT,
   [options_json] TEXT,
   [response] TEXT,
   [response_json] TEXT,
   [conversation_id] TEXT REFERENCES [conversations]([id]),
   [duration_ms] INTEGER,
   [datetime_utc] TEXT,
   [input_tokens] INTEGER,
   [output_tokens] INTEGER,
   [token_details] TEXT,
   [schema_id] TEXT,
   [resolved_model] TEXT
);
INSERT INTO responses VALUES('01ksc32sb1d399hngfp2ac7tgp','deepseek-r1','My pod is in CrashLoopBackOff with exit code 137. What does it mean?','You are a Kubernetes SRE. Be concise.','{"messages": [{"role": "system", "content": "You are a Kubernetes SRE. Be concise."}, {"role": "user", "content": "My pod is in CrashLoopBackOff with exit code 137. What does it mean?"}]}','{"temperature": 0.6}',replace('137 = 128 + 9, SIGKILL. Usually OOMKilled. Check kubectl describe pod, last state reason. Could also be liveness probe failing, then SIGTERM then SIGKILL after the grace period.\n</think>\n\nExit code 137 is 128 + 9: the process was killed with **SIGKILL**. Usually the container exceeded its memory limit.\n\n1. Run `kubectl describe pod <name>` and look at *Last State*: `OOMKilled` confirms it.\n2. If it says `Error` instead, a failing liveness probe may be killing the container.\n3. Raise `resources.limits.memory` or reduce what the process uses.','\n',char(10)),'{"content": {"$": "r:01ksc32sb1d399hngfp2ac7tgp"}, "role": "assistant", "finish_reason": "stop", "usage": {"completion_tokens": 150, "prompt_tokens": 34, "total_tokens": 184}, "id": "chatcmpl-e85ffb47444acd81ef8ffb35de75c3dc", "object": "chat.completion.chunk", "model": "deepseek-ai/DeepSeek-R1", "created": 1793731202}','01kqapts3n0hfxe7vn17z5yrmh',6680,'2026-11-03T18:40:02.551877+00:00',34,150,NULL,NULL,'deepseek-ai/DeepSeek-R1');
INSERT INTO responses VALUES('01k3vzayryav9mdxzee3f2gkmc','deepseek-r1','Two dice are rolled. What is the probability that the sum is at least 9?',NULL,'{"messages": [{"role": "user", "content": "Two dice are rolled. What is the probability that the sum is at least 9?"}]}','{}',replace('Sums >= 9: 9 has 4 ways, 10 has 3, 11 has 2, 12 has 1. Total 10. 10/36 = 5/18.\n</think>\n\nThere are 4 + 3 + 2 + 1 = 10 favourable outcomes out of 36, so the probability is **10/36 = 5/18 ≈ 0.278**.','\n',char(10)),'{"content": {"$": "r:01k3vzayryav9mdxzee3f2gkmc"}, "role": "assistant", "finish_reason": "stop", "usage": {"completion_tokens": 90, "prompt_tokens": 23, "total_tokens": 113}, "id": "chatcmpl-6ee918dd7199726a766a8ecf8c23f8d8", "object": "chat.completion.chunk", "model": "deepseek-ai/DeepSeek-R1", "created": 1793731270}','01kr3qgz0389ckd3a39ab0hybp',3935,'2026-11-03T18:41:10.004120+00:00',23,90,NULL,NULL,'deepseek-ai/DeepSeek-R1');
INSERT INTO responses VALUES('01kggz1ayvh8bcef21hdb2zmg7','deepseek-r1','It says OOMKilled and the limit is 512Mi. The app is a JVM service.',NULL,'{"messages": [{"role": "system", "content": "You are a Kubernetes SRE. Be concise."}, {"role": "user", "content": "My pod is in CrashLoopBackOff with exit code 137. What does it mean?"}, {"role": "assistant", "content": {"$": "r:01ksc32sb1d399hngfp2ac7tgp"}}, {"role": "user", "content": "It says OOMKilled and the limit is 512Mi. The app is a JVM service."}]}','{"temperature": 0.6}',replace('JVM: default max heap is 25% of container memory, but metaspace, threads, direct buffers matter. Suggest -XX:MaxRAMPercentage=60, raise limit to 1Gi, check NMT.\n</think>\n\nA JVM needs room beyond the heap for metaspace, threads and direct buffers, and 512Mi is tight for that.\n\n- Raise the limit to `1Gi`.\n- Set `-XX:MaxRAMPercentage=60`, and remove any fixed `-Xmx` that exceeds it.\n- If it still grows, start with `-XX:NativeMemoryTracking=summary` and compare snapshots.','\n',char(10)),'{"content": {"$": "r:01kggz1ayvh8bcef21hdb2zmg7"}, "role": "assistant", "finish_reason": "stop", "usage": {"completion_tokens": 131, "prompt_tokens": 158, "total_tokens": 289}, "id": "chatcmpl-9e5af34a778d0e4aca79e2a7b5acd57b", "object": "chat.completion.chunk", "model": "deepseek-ai/DeepSeek-R1", "created": 1793731357}','01kqapts3n0hfxe7vn17z5yrmh',4819,'2026-11-03T18:42:37.120093+00:00',158,131,NULL,NULL,'deepseek-ai/DeepSeek-R1');
INSERT INTO responses VALUES('01k9fny529fqc2sjgt8258a8qn','gpt-4o-mini','Write a haiku about a late bus in the rain.',NULL,'{"messages": [{"role": "user", "content": "Write a haiku about a late bus in the rain."}]}','{}',replace('Rain drums on the roof,\nheadlights bloom, but not for me;\nthe timetable drips.','\n',char(10)),'{"content": {"$": "r:01k9fny529fqc2sjgt8258a8qn"}, "role": "assistant", "finish_reason": "stop", "usage": {"completion_tokens": 19, "prompt_tokens": 17, "total_tokens": 36}, "id": "chatcmpl-9567befbc49f14c01562f613f5c508a9", "object": "chat.completion.chunk", "model": "gpt-4o-mini-2024-07-18", "created": 1793731800}','01k9vda7cs5r4vmm6y83qg9438',7308,'2026-11-03T18:50:00.700001+00:00',17,19,NULL,NULL,'gpt-4o-mini-2024-07-18');
CREATE INDEX [idx_responses_conversation_id] ON [responses] ([conversation_id]);
COMMIT;
