-- MySQL dump 10.13  Distrib 8.4.3, for Linux (x86_64)
--
-- Host: db    Database: agriturismo
-- ------------------------------------------------------
-- Server version	8.4.3

/*!50503 SET NAMES utf8mb4 */;
/*!40103 SET TIME_ZONE='+00:00' */;

--
-- Table structure for table `llm_requests`
--

DROP TABLE IF EXISTS `llm_requests`;
CREATE TABLE `llm_requests` (
  `id` bigint unsigned NOT NULL AUTO_INCREMENT,
  `created_at` datetime(3) NOT NULL,
  `conversation_id` varchar(64) DEFAULT NULL,
  `user_id` varchar(64) DEFAULT NULL,
  `request` json NOT NULL,
  `response` json DEFAULT NULL,
  `status` smallint NOT NULL,
  `latency_ms` int DEFAULT NULL,
  `error` text,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=6 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

--
-- Dumping data for table `llm_requests`
--

LOCK TABLES `llm_requests` WRITE;
/*!40000 ALTER TABLE `llm_requests` DISABLE KEYS */;
INSERT INTO `llm_requests` VALUES (1,'2026-11-16 17:40:00.250','conv-31','ospite_5','{\"model\":\"zai-org/GLM-4.6\",\"messages\":[{\"role\":\"system\",\"content\":\"Sei l\'assistente di un agriturismo. Rispondi brevemente.\"},{\"role\":\"user\",\"content\":\"C\'è posto per l\'8 dicembre?\"}],\"temperature\":1.0,\"top_p\":0.95,\"max_tokens\":1024}','{\"id\":\"chatcmpl-5b2dea2fd9292ed663361163207e5ada\",\"object\":\"chat.completion\",\"created\":1794850800,\"model\":\"zai-org/GLM-4.6\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\\nSì, per l\'8 dicembre abbiamo **due camere** \\\"Ulivo\\\".\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning_content\":\"L\'8 dicembre: due camere libere.\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":30,\"total_tokens\":90,\"completion_tokens\":60,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"kv_transfer_params\":null}',200,2104,NULL),(2,'2026-11-16 17:41:00.500','conv-31','ospite_5','{\"model\":\"zai-org/GLM-4.6\",\"messages\":[{\"role\":\"system\",\"content\":\"Sei l\'assistente di un agriturismo. Rispondi brevemente.\"},{\"role\":\"user\",\"content\":\"C\'è posto per l\'8 dicembre?\"},{\"role\":\"assistant\",\"content\":\"\\nSì, per l\'8 dicembre abbiamo **due camere** \\\"Ulivo\\\".\"},{\"role\":\"user\",\"content\":\"Quanto costa?\\nColazione inclusa?\"}],\"temperature\":1.0,\"top_p\":0.95,\"max_tokens\":1024}','{\"id\":\"chatcmpl-8cfa0967373e364ffda3f32dd1bbe2b9\",\"object\":\"chat.completion\",\"created\":1794850860,\"model\":\"zai-org/GLM-4.6\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\\n**90 €** a notte, colazione inclusa.\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning_content\":\"Prezzo 90 euro, colazione inclusa.\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":30,\"total_tokens\":90,\"completion_tokens\":60,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"kv_transfer_params\":null}',200,1800,NULL),(3,'2026-11-16 18:00:00.100','conv-32','ospite_6','{\"model\":\"zai-org/GLM-4.6\",\"messages\":[{\"role\":\"system\",\"content\":\"Sei l\'assistente di un agriturismo. Rispondi brevemente.\"},{\"role\":\"user\",\"content\":\"Accettate cani?\"}],\"temperature\":1.0,\"top_p\":0.95,\"max_tokens\":1024}',NULL,502,5003,'Bad Gateway; upstream said: <html>\n<h1>502</h1></html>');
INSERT INTO `llm_requests` VALUES (4,'2026-11-16 18:00:06.100','conv-32','ospite_6','{\"model\":\"zai-org/GLM-4.6\",\"messages\":[{\"role\":\"system\",\"content\":\"Sei l\'assistente di un agriturismo. Rispondi brevemente.\"},{\"role\":\"user\",\"content\":\"Accettate cani?\"}],\"temperature\":1.0,\"top_p\":0.95,\"max_tokens\":1024}','{\"id\":\"chatcmpl-15941e9527c921812cfb6252cb32a531\",\"object\":\"chat.completion\",\"created\":1794852006,\"model\":\"zai-org/GLM-4.6\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\\nSì, di piccola taglia.\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning_content\":\"Cani: sì, piccola taglia.\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":30,\"total_tokens\":90,\"completion_tokens\":60,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"kv_transfer_params\":null}',200,1500,NULL),(5,'2026-11-16 18:05:00.000',NULL,NULL,'{\"model\":\"BAAI/bge-m3\",\"input\":[\"Accettate cani?\"]}','{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,\"embedding\":[0.01,-0.2]}],\"model\":\"BAAI/bge-m3\",\"usage\":{\"prompt_tokens\":4,\"total_tokens\":4}}',200,20,NULL);
/*!40000 ALTER TABLE `llm_requests` ENABLE KEYS */;
UNLOCK TABLES;

-- Dump completed on 2026-11-17  6:00:01
