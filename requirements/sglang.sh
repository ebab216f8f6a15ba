#!/bin/sh
# Makes build/sglang/venv: SGLang's Python, without the kernels, which need a GPU. sh requirements/sglang.sh
# Only what requirements/sglang.txt pins is installed; torch, transformers and the rest are read from .venv.
set -eu
cd "$(dirname "$0")/.."

VENV=build/sglang/venv
wanted="$(.venv/bin/python --version) $PWD $(cat requirements/sglang.txt requirements/sglang.sh | sha256sum)"
stamp=$VENV/.outrider-sglang
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

rm -rf "$VENV"
.venv/bin/uv venv --quiet --python .venv/bin/python "$VENV"
UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}; export UV_FIND_LINKS
VIRTUAL_ENV=$PWD/$VENV .venv/bin/uv pip install --quiet --no-deps --require-hashes --requirement requirements/sglang.txt
# This environment's packages come first, so that its own versions are imported.
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
packages .venv/bin/python >"$(packages "$VENV/bin/python")/of_outrider.pth"
printf '%s\n' "$wanted" >"$stamp"
