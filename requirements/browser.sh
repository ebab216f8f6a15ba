#!/bin/sh
# Installs Chromium for tests/eval/test_browser.py, on CI machines only. Elsewhere the system is left
# unchanged, and the tests are skipped with a message.
set -eu
if [ -z "${CI:-}" ] || command -v chromium > /dev/null || [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    exit 0
fi
echo "installing Chromium for the tests of the report"
(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) > /dev/null ||
    echo "Chromium could not be installed: the tests that need it are skipped"
