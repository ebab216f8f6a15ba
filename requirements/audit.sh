#!/bin/sh
# Looks the pinned versions up in the vulnerability database of osv.dev: sh requirements/audit.sh
# It needs an internet connection, and exits with 1 where a version has a known vulnerability.
# OSV_URL names another address with the same interface.
set -eu

OSV_URL=${OSV_URL:-https://api.osv.dev/v1/query}
HERE=build/audit
mkdir -p "$HERE"
.venv/bin/uv venv --quiet --clear "$HERE/venv"
VIRTUAL_ENV=$PWD/$HERE/venv .venv/bin/uv pip install --quiet --no-deps --require-hashes --requirement requirements/audit.txt

vulnerable=
for name in cpu torch-cpu gpu docs smollm2 sglang uv build audit; do
    echo "audit: requirements/$name.txt"
    # The database knows torch's versions without the build's label.
    sed -n '/^[^ #]/ { s/ *\\$//; s/+cpu//; p; }' "requirements/$name.txt" >"$HERE/$name.txt"
    if ! "$HERE/venv/bin/pip-audit" --no-deps --disable-pip --progress-spinner off --vulnerability-service osv \
            --osv-url "$OSV_URL" --requirement "$HERE/$name.txt" 2>"$HERE/$name.log"; then
        # pip-audit exits with 1 for a vulnerability and for every error of its own.
        if ! grep -q '^Found [0-9]* known vulnerabilit' "$HERE/$name.log"; then
            echo "audit: $OSV_URL did not answer for requirements/$name.txt: $(tail -n 1 "$HERE/$name.log")" >&2
            echo "audit: run it where that address can be reached, or set OSV_URL" >&2
            exit 2
        fi
        vulnerable="$vulnerable requirements/$name.txt"
    fi
done
if [ -n "$vulnerable" ]; then
    echo "audit: known vulnerabilities in$vulnerable; raise the version in the .in file, then make lock" >&2
    exit 1
fi
echo "audit: no pinned version has a known vulnerability"
