-- MySQL dump 10.13  Distrib 8.4.6, for Linux (x86_64)
--
-- Host: localhost    Database: new-api
-- ------------------------------------------------------
-- Server version	8.4.6

/*!40101 SET NAMES utf8mb4 */;

--
-- Table structure for table `logs`
--

DROP TABLE IF EXISTS `logs`;
CREATE TABLE `logs` (
  `id` bigint NOT NULL AUTO_INCREMENT,
  `user_id` bigint DEFAULT 0,
  `created_at` bigint DEFAULT NULL,
  `type` bigint DEFAULT 0,
  `content` longtext,
  `username` varchar(191) DEFAULT '',
  `token_name` varchar(191) DEFAULT '',
  `model_name` varchar(191) DEFAULT '',
  `quota` bigint DEFAULT 0,
  `prompt_tokens` bigint DEFAULT 0,
  `completion_tokens` bigint DEFAULT 0,
  `use_time` bigint DEFAULT 0,
  `is_stream` tinyint(1) DEFAULT NULL,
  `channel_id` bigint DEFAULT 0,
  `channel_name` longtext,
  `token_id` bigint DEFAULT 0,
  `group` varchar(191) DEFAULT '',
  `ip` varchar(191) DEFAULT '',
  `other` longtext,
  PRIMARY KEY (`id`),
  KEY `idx_created_at_id` (`id`,`created_at`)
) ENGINE=InnoDB AUTO_INCREMENT=5007 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

--
-- Dumping data for table `logs`
--

LOCK TABLES `logs` WRITE;
INSERT INTO `logs` VALUES (5001,12,1794279612,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','anna','prod-key','deepseek-r1',228,18,96,2,0,3,NULL,7,'default','','{\"admin_info\": {\"use_channel\": [\"3\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 412, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5002,13,1794279649,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','li.wei','prod-key','deepseek-r1',250,18,107,2,1,3,NULL,7,'default','','{\"admin_info\": {\"use_channel\": [\"3\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 413, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5003,14,1794279686,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','tomas','prod-key','deepseek-r1',388,35,159,3,0,3,NULL,7,'default','','{\"admin_info\": {\"use_channel\": [\"3\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 414, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5004,12,1794279723,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','anna','prod-key','deepseek-r1',230,19,96,2,1,3,NULL,7,'default','','{\"admin_info\": {\"use_channel\": [\"3\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 415, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5005,13,1794279760,5,'status_code=503, upstream error: no healthy upstream','anna','prod-key','deepseek-r1',0,0,0,3,1,3,NULL,7,'default','','{\"admin_info\": {\"use_channel\": [\"3\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 416, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5006,14,1794279797,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','tomas','prod-key','deepseek-r1',224,23,89,1,1,3,NULL,7,'default','','{\"admin_info\": {\"use_channel\": [\"3\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 417, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}');
UNLOCK TABLES;
-- Dump completed on 2026-11-10  4:00:01
