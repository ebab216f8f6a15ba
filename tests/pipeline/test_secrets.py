"""Secrets of an endpoint's command and environment are in nothing that is written or printed.

A run and a bundle are made with secrets planted wherever a user may have some. The commands' real
stages, export, model card and manifests run; only the training and the evaluation are left out.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.live.manifests import write_manifest
from outrider.live.releases import Releases
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.export import _write
from outrider.serving.bundle.bundle_places import local_bundle
from outrider.serving.bundle.model_card import model_card
from outrider.serving.serve_flags import bundle_command
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.cli import commands
from tests.cli.workplace import write_workplace
from tests.eval.sample_results import sample_results
from tests.live.test_manifests import cluster_endpoint
from tests.tiny import save_drafter

SECRET = "geheim"
"""In every planted value, and nowhere else."""

VARIABLES = {
    name: f"{SECRET}-{number}"
    for number, name in enumerate(
        ("HF_TOKEN", "VLLM_API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD")
    )
}

COMMAND = (
    f"HF_TOKEN={SECRET}-a VLLM_API_KEY={SECRET}-b AWS_SESSION_TOKEN={SECRET}-c"
    f" MY_PASSWORD={SECRET}-d LD_PRELOAD=/x.so VLLM_PLUGINS=theirs VLLM_USE_DEEP_GEMM=0"
    " vllm serve TARGET"
    f" --api-key {SECRET}-e {SECRET}-f --hf-token {SECRET}-g --ssl-keyfile /etc/tls.pem"
    f" --ssl-keyfile-password={SECRET}-i --chat-template /x.jinja --middleware a.B"
    f" --otlp-traces-endpoint https://user:{SECRET}-l@host --served-model-name r1"
    f' --model-loader-extra-config \'{{"secret": "{SECRET}-n"}}\''
    f" --kv-transfer-config.kv_connector_extra_config.token={SECRET}-o"
    " --max-num-batched-tokens 4K --tokenizer-mode auto --max-model-len 2048 --max-num-seqs 8"
)

MISTAKES = (
    (f"traffic.path=https://user:{SECRET}@127.0.0.1:9/log.jsonl",),
    (f"traffic.path=https://127.0.0.1:9/log.jsonl?X-Amz-Signature={SECRET}",),
    (f"traffic.path=[a, 'https://host/log.jsonl?X-Amz-Date=1&X-Amz-Signature={SECRET}']",),
    (f"speculator.base=https://key:{SECRET}@bucket/x",),
    (f"target.model=https://user:{SECRET}@host/x",),
    (f"serving.engine.environment.HF_TOKEN={SECRET}",),
    (f"serving.engine.extra_arguments.hf_token={SECRET}",),
    (f"serving.engine.extra_arguments.tokenizer=https://user:{SECRET}@host/x",),
    (f"serving.engine.api_key={SECRET}",),
    (f"serving.engine.api_key=[{SECRET}",),
    (f"--api-key={SECRET}",),
    ("--from-serve-command", f"HF_TOKEN={SECRET} vllm bench --model x"),
    ("--from-serve-command", f"vllm serve x --api-key=${{{SECRET}}}"),
    ("--from-serve-command", f"vllm serve --api-key {SECRET}"),
    ("--from-serve-command", f"vllm serve x -tp 0 --api-key {SECRET}"),
    ("--from-serve-command", f"vllm serve x --hf-token '{SECRET}"),
)
"""Words of a command line."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, nano_r1: Path) -> Path:
    sections = {"split": {"near_duplicate_similarity": 1.0}, "eval": {"concurrency": [1]}}
    return write_workplace(tmp_path_factory.mktemp("secrets"), nano_r1, {}, **sections)


def assert_none(folder: Path, *texts: str) -> set[str]:
    """No file below the folder and no text has a secret; returns the files' names."""
    assert SECRET not in "".join(texts)
    found = set()
    for path in folder.rglob("*"):
        assert SECRET not in path.name
        if path.is_file():
            found.add(path.name)
            assert SECRET.encode() not in path.read_bytes(), path
    return found


def test_a_run_and_its_bundle_have_no_secret(
    workplace: Path, nano_r1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--recipe", "mine.yaml", "--stages", "ingest,split", "split.heldout_fraction=0.25"]
    words += ["--from-serve-command", COMMAND.replace("TARGET", str(nano_r1))]
    words += ["serving.ignored_flags=[--ssl-keyfile-password]"]  # unknown to vLLM 0.32
    finished = commands.run("train-speculator", *words, cwd=workplace, **VARIABLES)
    assert finished.returncode == 0, finished.stderr
    run = RunDirectory(workplace / "runs" / "mine")
    files = assert_none(run.root, finished.stdout, finished.stderr)
    assert {"recipe.resolved.yaml", "provenance.json", "ingest.log", "summary.json"} <= files
    told = (run.root / "provenance.json").read_text()
    for word in ("--from-serve-command", "transformers", "split.heldout_fraction=0.25"):
        assert word in told  # or nothing was written down
    recipe = run.read_resolved()
    assert recipe.serving.engine.environment == {"VLLM_USE_DEEP_GEMM": "0"}

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    import torch

    save_drafter(load_mtp(nano_r1, torch.bfloat16), nano_r1, tmp_path / "speculator")
    made = tmp_path / "made"
    evidence: dict[str, Any] = {"k": {"base": 1, "custom": 2}, "k_per_batch_size": None}
    stub: Any = SimpleNamespace(speculator=tmp_path / "speculator")
    folder = str(made / "bundle")
    _write(stub, recipe, sample_results(), evidence=evidence, profile={}, to=folder)
    (made / "README.md").write_text(model_card(made / "bundle", "acme/resume"))
    cluster = {"model": "pvc://models/r1", "speculator": "pvc://models/resume", "stable": "own"}
    for kind in ("kserve", "argo"):
        endpoint = cluster_endpoint(tmp_path, **cluster)
        (made / f"{kind}.yaml").write_text(write_manifest(kind, made / "bundle", endpoint))
    with local_bundle(made / "bundle") as directory:
        Releases(made / "releases").add(directory, "https://user:geheim@host/bundle")
    files = assert_none(made, str(bundle_command(made / "bundle")))
    assert {"serve.sh", "bundle.json", "README.md", "argo.yaml", "release.json"} <= files
    assert "VLLM_USE_DEEP_GEMM" in (made / "argo.yaml").read_text()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_a_secret_is_one_message_without_it(
    workplace: Path, mistake: tuple[str, ...]
) -> None:
    words = ["--recipe", "mine.yaml", "--stages", "ingest", "name=wrong", *mistake]
    finished = commands.run("train-speculator", *words, cwd=workplace)
    wrong_line = f"=[{SECRET}" in mistake[0] or mistake[0].startswith("--api-key")
    commands.assert_one_message(finished, status=2 if wrong_line else 1)
    assert SECRET not in finished.stderr
    assert not (workplace / "runs" / "wrong").exists()
