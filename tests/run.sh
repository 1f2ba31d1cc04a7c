#!/usr/bin/env bash
# The tests, with their own set-up in .venv; arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../run_beir.sh"
set_up test
cd "$root"
exec .venv/bin/python -m pytest "$@"
