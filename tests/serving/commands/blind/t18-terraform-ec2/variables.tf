variable "region" { default = "eu-central-1" }
variable "environment" { default = "dev" }
variable "ami_id" { type = string }
variable "subnet_id" { type = string }
variable "security_group_ids" { type = list(string) }
variable "instance_type" { default = "g5.12xlarge" }

variable "vllm_version" {
  type    = string
  default = "v0.13.0"
}

variable "model_id" {
  description = "Hugging Face model to serve"
  type        = string
}

variable "tensor_parallel_size" {
  type    = number
  default = 4
}

variable "max_model_len" {
  type    = number
  default = 32768
}
