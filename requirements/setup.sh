#!/bin/sh
# Creates .venv with everything that `make demo` and `make test` need. Does nothing when .venv is up to date.
# Run from the root of the repository: sh requirements/setup.sh
# PYTHON=python3.12 chooses the interpreter. Each installed file is verified against the SHA-256 digests in
# requirements/*.txt; ACCEPT_LOCAL_WHEELS=1 also takes other files, from local wheel folders only.
set -eu

PYTHON=${PYTHON:-python3}
VENV=.venv
# torch's CPU build is not on the general package index. This one has it.
PYTORCH_CPU_INDEX=${PYTORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

fail() { printf '%s\n' "set-up: $*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null 2>&1 \
    || fail "$PYTHON: command not found; install Python 3.11 or newer, or run PYTHON=/path/to/python make ..."
"$PYTHON" -c 'import pip, sys; raise SystemExit(sys.version_info < (3, 11))' \
    || fail "$PYTHON is $("$PYTHON" --version 2>&1), Outrider needs 3.11 or newer; run PYTHON=/path/to/python make ..."

# vLLM's CUDA build where a GPU responds, its CPU build elsewhere.
if nvidia-smi >/dev/null 2>&1; then kind=gpu; else kind=cpu; fi

# The stamp records what was installed. A changed pin, package metadata or Python runs the set-up again.
wanted="$kind $("$PYTHON" --version 2>&1) $(cat "requirements/$kind.txt" requirements/torch-cpu.txt requirements/uv.txt \
    requirements/build.txt requirements/setup.sh pyproject.toml | sha256sum)"
stamp=$VENV/.outrider-setup
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

echo "set-up: $kind packages into $VENV (a few minutes the first time)"
if ! [ -x "$VENV/bin/python" ] \
    || ! "$VENV/bin/python" -c 'import pip, sys; raise SystemExit(sys.version_info < (3, 11))'; then
    "$PYTHON" -m venv --clear "$VENV" \
        || fail "$PYTHON -m venv failed; on Debian and Ubuntu run: apt install python3-venv"
fi
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --requirement requirements/uv.txt \
    || fail "pip could not install requirements/uv.txt; check that a package index is reachable (PIP_INDEX_URL names one)"

# uv does not read pip's settings. Pass them on where uv has none of its own.
if [ -n "${PIP_FIND_LINKS:-}" ] && [ -z "${UV_FIND_LINKS:-}" ]; then
    UV_FIND_LINKS=$(printf '%s' "$PIP_FIND_LINKS" | tr -s ' ' ','); export UV_FIND_LINKS
fi
if [ -n "${PIP_INDEX_URL:-}" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    UV_DEFAULT_INDEX=$PIP_INDEX_URL; export UV_DEFAULT_INDEX
fi
if [ -n "${PIP_EXTRA_INDEX_URL:-}" ] && [ -z "${UV_EXTRA_INDEX_URL:-}${UV_INDEX:-}" ]; then
    UV_EXTRA_INDEX_URL=$PIP_EXTRA_INDEX_URL; export UV_EXTRA_INDEX_URL
fi
# By default uv searches only the first index that has a package. torch's CPU build may be on another one.
# No index can put its own file under a pinned version: the digests decide.
UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}; export UV_INDEX_STRATEGY
VIRTUAL_ENV=$PWD/$VENV; export VIRTUAL_ENV

log=$VENV/setup.log
# Compile now. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each of an engine's three
# processes would otherwise compile everything that it imports: 15 s.
install() { "$VENV/bin/uv" pip install --compile-bytecode --no-deps "$@" >"$log" 2>&1; }
fail_with_log() { cat "$log" >&2; fail "$*"; }

# The pins are complete, so nothing is resolved. DeepSpeed is built, with a setuptools that is verified too.
install_verified() {
    pins=$1; shift
    accepted=
    while ! install --require-hashes --requirement "$pins" "$@" \
            --preview-features build-dependency-hashes --require-build-hashes --build-constraints requirements/build.txt
    do
        package=$(sed -n 's/.*Hash mismatch for `\([^`]*\)`.*/\1/p' "$log" | head -n 1)
        [ -n "$package" ] || return 1
        local_files=$("$PYTHON" requirements/local_wheels.py "$pins" "$package")
        [ -n "$local_files" ] && [ "$package" != "$accepted" ] || fail_with_log \
            "a package index serves another file for $package than $pins lists; use an index with the published one
      (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)"
        [ "${ACCEPT_LOCAL_WHEELS:-}" = 1 ] || fail "$pins lists another SHA-256 for $package than this local file has:
      $local_files
      Replace it with the published file, or accept local files: ACCEPT_LOCAL_WHEELS=1 make setup"
        echo "set-up: not verified, since ACCEPT_LOCAL_WHEELS is 1: $local_files"
        install --no-index "$package" || fail_with_log "uv could not install the local file of $package"
        accepted=$package
    done
}

if [ "$kind" = cpu ] && ! install_verified requirements/torch-cpu.txt; then
    grep -q 'torch==[0-9.]*+cpu' "$log" || fail_with_log "uv could not install requirements/torch-cpu.txt"
    torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements/torch-cpu.txt)
    echo "set-up: $torch is on none of the package indexes in use; taking it from $PYTORCH_CPU_INDEX"
    install_verified requirements/torch-cpu.txt --default-index "$PYTORCH_CPU_INDEX" \
        || fail_with_log "$torch could not be installed from $PYTORCH_CPU_INDEX; name an index or a folder that has it:
      PIP_EXTRA_INDEX_URL=<address> make demo       (or UV_EXTRA_INDEX_URL)
      PIP_FIND_LINKS=<folder> make demo             (or UV_FIND_LINKS)"
fi
install_verified "requirements/$kind.txt" \
    || fail_with_log "uv could not install requirements/$kind.txt; its message is above and in $log"
"$VENV/bin/uv" pip install --quiet --no-deps --no-build-isolation --editable . \
    || fail "uv could not install this checkout into $VENV"
# setuptools' finder of the checkout's folders comes last. Next to a clone named `outrider`, Python would take the
# clone's folder for a namespace package before. This file is read after setuptools' own: names are sorted.
site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' 'import sys; sys.meta_path.sort(key=lambda finder: "__editable___outrider" not in str(finder.__module__))' \
    >"$site/outrider_first.pth"
# Optional: where it cannot be downloaded or compiled, one line tells why and the set-up continues.
"$VENV/bin/outrider" doctor --install >"$log" || true
printf '%s\n' "$wanted" >"$stamp"
echo "set-up: done; $VENV/bin/outrider doctor shows what this machine can run"
