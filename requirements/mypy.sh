#!/bin/sh
# Type-checks the packages `outrider.*`. mypy cannot follow an editable install that renames folders,
# so it reads them through symbolic links.
set -eu
cd "$(dirname "$0")/.."
links=$PWD/.mypy_cache/packages
mkdir -p "$links/outrider"
ln -sfn "$PWD/outrider/__init__.py" "$links/outrider/__init__.py"
for room in common recipes speculators serving training data eval pipeline live adapt cli; do
    ln -sfn "$PWD/$room" "$links/outrider/$room"
done
MYPYPATH="$links" exec "${PYTHON:-.venv/bin/python}" -m mypy -p outrider "$@"
