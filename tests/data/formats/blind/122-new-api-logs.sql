-- MySQL dump 10.13  Distrib 8.2.0, for Linux (x86_64)
--
-- Host: localhost    Database: new-api
-- ------------------------------------------------------
-- Server version	8.2.0

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
/*!40103 SET TIME_ZONE='+00:00' */;

--
-- Table structure for table `logs`
--

DROP TABLE IF EXISTS `logs`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
CREATE TABLE `logs` (
  `id` bigint NOT NULL AUTO_INCREMENT,
  `user_id` bigint DEFAULT NULL,
  `created_at` bigint DEFAULT NULL,
  `type` bigint DEFAULT NULL,
  `content` longtext,
  `username` varchar(191) DEFAULT '',
  `token_name` varchar(191) DEFAULT '',
  `model_name` varchar(191) DEFAULT '',
  `quota` bigint DEFAULT '0',
  `prompt_tokens` bigint DEFAULT '0',
  `completion_tokens` bigint DEFAULT '0',
  `use_time` bigint DEFAULT '0',
  `is_stream` tinyint(1) DEFAULT NULL,
  `channel_id` bigint DEFAULT NULL,
  `token_id` bigint DEFAULT '0',
  `group` varchar(191) DEFAULT NULL,
  `ip` varchar(191) DEFAULT '',
  `other` longtext,
  PRIMARY KEY (`id`),
  KEY `idx_created_at_id` (`id`,`created_at`),
  KEY `idx_logs_user_id` (`user_id`)
) ENGINE=InnoDB AUTO_INCREMENT=90216 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

--
-- Dumping data for table `logs`
--

LOCK TABLES `logs` WRITE;
/*!40000 ALTER TABLE `logs` DISABLE KEYS */;
INSERT INTO `logs` VALUES (90211,7,1792658401,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','team-pruefung','r1-batch','deepseek-r1',812,420,1380,31,1,12,44,'default','','{\"admin_info\":{\"use_channel\":[\"12\"]},\"cache_ratio\":0,\"cache_tokens\":0,\"completion_ratio\":4,\"frt\":812,\"group_ratio\":1,\"model_price\":-1,\"model_ratio\":0.275,\"user_group_ratio\":-1,\"request_path\":\"/v1/chat/completions\"}'),(90212,7,1792658460,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','team-pruefung','r1-batch','deepseek-r1',700,380,1190,27,0,12,44,'default','','{\"admin_info\":{\"use_channel\":[\"12\"]},\"cache_ratio\":0,\"cache_tokens\":0,\"completion_ratio\":4,\"frt\":812,\"group_ratio\":1,\"model_price\":-1,\"model_ratio\":0.275,\"user_group_ratio\":-1,\"request_path\":\"/v1/chat/completions\"}'),(90213,7,1792658500,5,'status_code=503, upstream error: Service \'r1\' unavailable (request id: 20261022084140512Xk)','team-pruefung','r1-batch','deepseek-r1',0,0,0,60,0,12,44,'default','','{\"admin_info\":{\"use_channel\":[\"12\"]},\"cache_ratio\":0,\"cache_tokens\":0,\"completion_ratio\":4,\"frt\":812,\"group_ratio\":1,\"model_price\":-1,\"model_ratio\":0.275,\"user_group_ratio\":-1,\"error_type\":\"upstream_error\",\"error_code\":\"bad_response_status_code\",\"status_code\":503,\"channel_id\":12,\"channel_name\":\"vllm-r1\",\"channel_type\":1}'),(90214,3,1792658611,2,'模型倍率 1.25，补全倍率 4.00，分组倍率 1.00','doku','web','gpt-4o',55,120,33,2,1,4,21,'default','','{\"admin_info\":{\"use_channel\":[\"12\"]},\"cache_ratio\":0,\"cache_tokens\":0,\"completion_ratio\":4,\"frt\":812,\"group_ratio\":1,\"model_price\":-1,\"model_ratio\":1.25,\"user_group_ratio\":-1}'),(90215,7,1792658700,1,'通过在线充值成功，充值金额: ＄10.000000 额度，支付金额：10.000000','team-pruefung','','',0,0,0,0,0,0,0,'','','');
/*!40000 ALTER TABLE `logs` ENABLE KEYS */;
UNLOCK TABLES;

-- Dump completed on 2026-10-22  9:00:03
