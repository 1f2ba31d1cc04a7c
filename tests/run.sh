#!/usr/bin/env bash
# The tests, with their own set-up in .venv, in a process per processor and one more, as some wait; arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../run_beir.sh"
set_up test
cd "$root"
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would each compile the package
export OMP_NUM_THREADS=1 # the processes leave no processor to other threads
exec .venv/bin/python -m pytest --numprocesses $(($(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
