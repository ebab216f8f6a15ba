-- MySQL dump 10.13  Distrib 8.2.0, for Linux (x86_64)
--
-- Host: localhost    Database: new-api
-- ------------------------------------------------------
-- Server version	8.2.0

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;

--
-- Table structure for table `logs`
--

DROP TABLE IF EXISTS `logs`;
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
  `channel_name` longtext,
  `token_id` bigint DEFAULT '0',
  `group` varchar(191) DEFAULT NULL,
  `ip` varchar(191) DEFAULT '',
  `request_id` varchar(64) DEFAULT '',
  `other` longtext,
  PRIMARY KEY (`id`),
  KEY `idx_created_at_id` (`id`,`created_at`),
  KEY `idx_logs_user_id` (`user_id`)
) ENGINE=InnoDB AUTO_INCREMENT=5210 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

--
-- Dumping data for table `logs`
--

LOCK TABLES `logs` WRITE;
INSERT INTO `logs` VALUES (5201,1,1794963788,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','root','default-token','deepseek-r1',768,549,561,6,0,2,'vllm-h20',1,'default','10.1.1.8','202611180103089836767160555a08b2','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 630, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5202,1,1794964308,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','root','default-token','deepseek-r1',587,1265,218,31,1,2,'vllm-h20',1,'default','10.1.1.8','20261118011148936516325611cc118f','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 855, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5203,1,1794964646,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','root','default-token','deepseek-r1',1019,427,820,44,0,2,'vllm-h20',1,'default','10.1.1.8','20261118011726311340463974e2ff42','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 387, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5204,1,1794964761,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','root','default-token','deepseek-r1',624,1762,127,45,1,2,'vllm-h20',1,'default','10.1.1.8','202611180119214896820201c9013750','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 244, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5205,7,1794965644,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','zhaoyun','default-token','deepseek-r1',2392,1395,1826,53,0,2,'vllm-h20',7,'default','10.1.7.8','202611180134047940423293f61793bc','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 814, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5206,7,1794966365,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','zhaoyun','default-token','deepseek-r1',2372,634,1998,12,0,2,'vllm-h20',7,'default','10.1.7.8','20261118014605538491444156bfcabd','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 475, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5207,3,1794966583,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','wangli','default-token','deepseek-r1',1928,466,1637,27,1,2,'vllm-h20',3,'default','10.1.3.8','2026111801494327436631112c66d92b','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 896, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5208,3,1794967390,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','wangli','default-token','deepseek-r1',2428,280,2138,33,0,2,'vllm-h20',3,'default','10.1.3.8','20261118020310840321550938a7dcbc','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 247, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}'),(5209,1,1794967984,2,'模型倍率 0.28，补全倍率 4.00，分组倍率 1.00','root','default-token','deepseek-r1',633,1362,235,54,1,2,'vllm-h20',1,'default','10.1.1.8','20261118021304313634420359702bf9','{\"admin_info\": {\"use_channel\": [\"2\"]}, \"cache_ratio\": 1, \"cache_tokens\": 0, \"completion_ratio\": 4, \"frt\": 268, \"group_ratio\": 1, \"model_price\": -1, \"model_ratio\": 0.275, \"request_path\": \"/v1/chat/completions\", \"user_group_ratio\": -1}');
UNLOCK TABLES;

-- Dump completed on 2026-11-18 12:00:01
