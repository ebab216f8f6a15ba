#!/bin/sh
# A browser for tests/eval/test_browser.py, on a CI machine alone: a person's system is left as it is, and those tests say what they lack.
set -eu
if [ -z "${CI:-}" ] || command -v chromium > /dev/null || [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    exit 0
fi
echo "installing Chromium for the tests of the report"
(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) > /dev/null ||
    echo "no Chromium to be had: the tests that need one are skipped"
