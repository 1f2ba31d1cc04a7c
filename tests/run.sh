#!/usr/bin/env bash
# The tests, with their own set-up in .venv, in a process per processor; arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../run_beir.sh"
set_up test
cd "$root"
export OMP_NUM_THREADS=1 # the processes leave no processor to other threads
exec .venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
