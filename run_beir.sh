#!/usr/bin/env bash
# A BEIR run from a clean clone: sets itself up in .venv, then runs the whole pipeline. `./run_beir.sh --help` says more.
# Sourced, it only defines `set_up`, which the tests use too.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# A Python of version 3.12 or later: PYTHON if it is set, else the first that runs.
find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3.12 python3.13 python3.14 python3 python; do
    # From the clone, where .python-version tells version managers what is meant.
    (cd "$root" && "$name" -c 'import sys; sys.version_info < (3, 12) and sys.exit(1); print(sys.executable)') 2>/dev/null && return
  done
  echo "error: no Python 3.12 or later; install one, or name it: PYTHON=/path/to/python3.12 ./run_beir.sh" >&2
  return 1
}

# set_up EXTRAS: install this clone and its extras into .venv, unless that was done with the same setup.cfg.
set_up() {
  local stamp="$root/.venv/.set-up-$1" python
  if [ -f "$stamp" ] && cmp -s "$stamp" "$root/setup.cfg" && [ -x "$root/.venv/bin/python" ]; then
    return
  fi
  echo "setting up $root/.venv (once; it takes some minutes and some GB) …" >&2
  if ! "$root/.venv/bin/python" -c 'import pip' 2>/dev/null; then
    python=$(find_python) || return 1
    "$python" -m venv --clear "$root/.venv" || {
      echo "error: $python cannot make a virtual environment; on Debian or Ubuntu: apt-get install python3-venv" >&2
      return 1
    }
  fi
  "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --editable "$root[$1]" >&2 || {
    echo "error: the installation failed, see above; the same command tries again" >&2
    return 1
  }
  "$root/.venv/bin/python" -m compileall -qq -j 0 "$root/.venv/lib" || true # on all processors; pip takes one
  cp "$root/setup.cfg" "$stamp"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  extras=demo
  for argument; do
    if [ "$argument" = --adapt ]; then
      extras=demo,trainer
    fi
  done
  set_up "$extras" && exec "$root/.venv/bin/python" -m cai_pyserini.beir "$@"
  exit 1
fi
