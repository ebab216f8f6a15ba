"""Kubernetes manifests of a canary: KServe's LLMInferenceService, or an Argo Rollout."""
