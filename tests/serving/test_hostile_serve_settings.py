"""What a bundle's `serve` may not set: nothing that names code, files, hosts or programs.

Each is refused by its name where the bundle is read, before anything is started, and its value is
not quoted. `tests/serving/test_allowed.py` gives vLLM's own parser what is not refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.serve_flags import read_serve_flags
from tests.serving.exported import write_exported

pytestmark = pytest.mark.attack("serve")

VARIABLES = {
    # Code that the dynamic linker, Python, the shell or a compiler would run
    "LD_PRELOAD": "evil.so",
    "LD_LIBRARY_PATH": "evil",
    "LD_AUDIT": "evil.so",
    "PYTHONSTARTUP": "evil.py",
    "PYTHONHOME": "evil",
    "PYTHONINSPECT": "1",
    "PYTHONPLATLIBDIR": "evil",
    "BASH_ENV": "evil.sh",
    "ENV": "evil.sh",
    "PATH": "evil",
    "CC": "evil",
    "CXX": "evil",
    "TRITON_CACHE_DIR": "evil",
    "TRITON_PTXAS_PATH": "evil",
    "TORCHINDUCTOR_CACHE_DIR": "evil",
    "TORCH_EXTENSIONS_DIR": "evil",
    "CUDA_HOME": "evil",
    "NCCL_NET_PLUGIN": "evil",
    "NCCL_TUNER_PLUGIN": "evil",
    "GCONV_PATH": "evil",
    # Servers, hosts and files
    "http_proxy": "evil",
    "HTTPS_PROXY": "evil",
    "HF_ENDPOINT": "evil",
    "HF_HOME": "evil",
    "HF_HUB_OFFLINE": "0",
    "HF_TOKEN": "evil",
    "SSL_CERT_FILE": "evil",
    "VLLM_CONFIG_ROOT": "evil",
    "VLLM_CACHE_ROOT": "evil",
    "VLLM_ASSETS_CACHE": "evil",
    "VLLM_HOST_IP": "evil",
    "VLLM_USE_MODELSCOPE": "1",
    "VLLM_LOGGING_CONFIG_PATH": "evil.json",
    "VLLM_TORCH_PROFILER_DIR": "evil",
    "VLLM_TUNED_CONFIG_FOLDER": "evil",
    "VLLM_MOE_PADDING_CONFIG": "evil",
    "VLLM_RPC_BASE_PATH": "evil",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
    # Names and values that are allowed, in other spellings
    "vllm_use_deep_gemm": "1",
    "VLLM_USE_DEEP_GEMM ": "1",
    "VLLM_USE_DEEP_GEMM\n": "1",
    "VLLM_USE=1 LD_PRELOAD": "evil.so",
    "": "evil",
}
VALUES = ["$(id)", "`id`", "${HF_TOKEN}", "a b", "a;b", "/mnt/evil", "..\\evil", "\u0000", 1, None]
"""Values of a variable that a bundle may set."""

ARGUMENTS: dict[str, Any] = {
    "chat_template": "/evil.jinja",
    "download_dir": "/evil",
    "load_format": "runai_streamer",
    "model_loader_extra_config": {"evil": 1},
    "hf_config_path": "evil/x",
    "served_model_name": "evil",
    "host": "0.0.0.0",
    "port": 1,
    "uds": "/evil.sock",
    "root_path": "/evil",
    "allowed_origins": ["*"],
    "allow_credentials": True,
    "ssl_keyfile": "/evil.pem",
    "api_key": "evil",
    "enable_lora": True,
    "lora_modules": ["x=/evil"],
    "otlp_traces_endpoint": "http://evil",
    "kv_transfer_config": {"kv_connector_module_path": "evil.Connector"},
    "kv_events_config": {"endpoint": "tcp://evil"},
    "ec_transfer_config": {"ec_connector_module_path": "evil.Connector"},
    "additional_config": {"evil": 1},
    "profiler_config": {"torch_profiler_dir": "/evil"},
    "allowed_local_media_path": "/",
    "allowed_media_domains": ["evil"],
    "tool_parser_plugin": "/evil.py",
    "reasoning_parser_plugin": "/evil.py",
    "enable_prompt_embeds": True,
    "data_parallel_address": "evil",
    "master_addr": "evil",
    "config": "/evil.yaml",
    "tokenizer_revision": "evil",
    "code_revision": "evil",
    "scheduler_cls": "evil.Scheduler",
    "worker_extension_cls": "evil.Extension",
    "io_processor_plugin": "evil",
    "kernel_config": {"evil": 1},
    "eplb_config": {"policy": "evil.Policy"},
    "quantization_config": {"path": "/evil"},
    "trust-remote-code": True,
    "block_size --middleware": "evil",
    "block_size\n--middleware": "evil",
}


def refused(tmp_path: Path, section: str, name: str, value: object) -> str:
    """The message that refuses a bundle whose `serve` sets this."""
    bundle = write_exported(tmp_path / "bundle")
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["serve"][section][name] = value
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(OutriderError) as caught:
        read_serve_flags(bundle, "/here")
    return str(caught.value)


def is_of(message: str, name: str) -> bool:
    """Whether a message is one line with the name and no value of an attacker's."""
    rest = message.replace(repr(name)[1:-1] or "''", "", 1)
    return rest != message and message.isprintable() and "evil" not in rest


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable(tmp_path: Path, name: str) -> None:
    assert is_of(refused(tmp_path, "environment", name, VARIABLES[name]), name)


@pytest.mark.parametrize("value", VALUES)
def test_the_value_of_a_variable(tmp_path: Path, value: object) -> None:
    name = "VLLM_USE_DEEP_GEMM"
    assert is_of(refused(tmp_path, "environment", name, value), name)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument(tmp_path: Path, name: str) -> None:
    assert is_of(refused(tmp_path, "arguments", name, ARGUMENTS[name]), name)
