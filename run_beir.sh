#!/usr/bin/env bash
# A BEIR run from a clean clone: sets itself up in .venv, then calls `cai-pyserini run`, whose arguments it takes; without
# a collection, it runs hpo. After the set-up, `./run_beir.sh --help` describes them, as the site's reference does.
# `./run_beir.sh --paper` trains and evaluates the rows of the paper's Table 3, at a small scale; it needs Debian.

# Sourced, this file only defines `set_up`, which the tests use too.

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

# any_python ARGUMENT …: a Python that may lack the packages, for what is done before the set-up.
any_python() {
  local python
  python=$(PYTHON="$root/.venv/bin/python" find_python 2>/dev/null || find_python) || return
  PYTHONPATH="$root" "$python" "$@"
}

# set_up EXTRAS: install this clone and its extras into .venv, unless that was done with the same setup.cfg. Of several
# that start at once, one does it, and the others wait.
set_up() {
  is_set_up "$1" || install "$1" 9< "$root/setup.cfg"
}

is_set_up() {
  local stamp="$root/.venv/.set-up-$1"
  [ -f "$stamp" ] && wanted "$1" | cmp -s "$stamp" - && [ -x "$root/.venv/bin/python" ]
}

# wanted EXTRAS: what is installed; for tests, in the versions that they have passed with.
wanted() {
  cat "$root/setup.cfg"
  [ "$1" != test ] || cat "$root/tests/constraints.txt"
}

install() {
  local venv="$root/.venv" python what=(--editable "$root[$1]")
  [ "$1" != test ] || what+=(--constraint "$root/tests/constraints.txt")
  python=$(find_python 2>/dev/null) || python="$venv/bin/python"
  # The lock is that of the descriptor 9, and so is held until this function returns.
  "$python" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waiting for another start, which sets up .venv", file=sys.stderr, flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks' || true
  is_set_up "$1" && return
  echo "setting up $venv (once; it takes some minutes and some GB) …" >&2
  if [ ! -e "$venv/bin/python" ] && [ ! -L "$venv/bin/python" ]; then
    python=$(find_python) || return 1
    "$python" -m venv "$venv" || {
      echo "error: $python cannot make a virtual environment; on Debian or Ubuntu: apt-get install python3-venv" >&2
      return 1
    }
  fi
  "$venv/bin/python" -c 'import sys; sys.version_info < (3, 12) and sys.exit(1)' || {
    echo "error: $venv/bin/python does not run, or is older than 3.12: move $venv away, and start again" >&2
    return 1
  }
  "$venv/bin/python" -c 'import pip' 2>/dev/null || "$venv/bin/python" -m ensurepip >&2 || {
    echo "error: $venv has no pip: install it there (uv venv --seed), or move $venv away, and start again" >&2
    return 1
  }
  cpu_torch "$venv/bin/python" "${what[@]:2}"
  { [ -x "$venv/bin/uv" ] && "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "${what[@]}" >&2; } ||
    "$venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check "${what[@]}" >&2 || {
    echo "error: the installation failed, see above; the same command tries again" >&2
    return 1
  }
  # On all processors, where pip uses one, without what is hardly ever imported; fails for templates among the
  # modules. The warnings are about other packages.
  local rarely='/(tests|transformers/models|mypy|nltk|openai|pip|posthog|sqlalchemy|statsmodels)/'
  PYTHONWARNINGS=ignore "$venv/bin/python" -m compileall -qq -j 0 -x "$rarely" "$venv"/lib/python3*/site-packages || true
  wanted "$1" > "$venv/.set-up-$1"
}

# cpu_torch PYTHON OPTION …: without an NVIDIA driver, install PyTorch's build for CPUs, without 5 GB of CUDA, from the index
# TORCH_INDEX. Where it does not answer within seconds, this does nothing, and PyTorch is installed with the others.
cpu_torch() {
  local index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu} pip=("$1" -m pip --disable-pip-version-check)
  [ "$(uname)" = Linux ] && ! command -v nvidia-smi > /dev/null && ! compgen -G '/proc/driver/nvidia' > /dev/null &&
    ! compgen -G '/dev/nvidia*' > /dev/null || return 0
  if ! "${pip[@]}" --timeout 5 --retries 0 index versions --index-url "$index" torch 2> /dev/null | grep '+cpu' > /dev/null; then
    echo "no PyTorch for CPUs at $index: taking PyPI's, which may be 5 GB larger; TORCH_INDEX names a mirror" >&2
    return
  fi
  # What it depends on comes with the rest: a mirror need not have it.
  "${pip[@]}" install --quiet --no-compile --no-deps --index-url "$index" "${@:2}" "$(sed -n 's/^ *\(torch >.*\)/\1/p' "$root/setup.cfg")" >&2 || true
}

# Table 3 of the paper with pairs of general language, which are downloaded first. Interrupted, it continues.
paper() {
  local python="$root/.venv/bin/python" tools="$root/benchmarks" data="$root/data"
  local table=("$tools/paper.py" hpo --data "$data/general.jsonl" --output "$data/paper" --loss margin-mse
    --pairs 30000 --repeats 1 "$@")
  local status=0
  any_python "${table[@]}" --check || status=$?
  [ $status = 5 ] || return $status # with its error, or after --help
  set_up demo,trainer || return 1
  [ -f "$data/general.jsonl" ] ||
    "$python" "$tools/general_pairs.py" --output "$data/general.jsonl" --folder "$data/pairs" --check hpo || return 1
  "$python" "${table[@]}"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  if [ "${1:-}" = --paper ]; then
    paper "${@:2}"
    exit
  fi
  extras=demo config=
  for argument; do
    case $argument in
      --adapt) extras=demo,trainer ;;
      --config*) extras=demo,trainer config=given ;; # its file may train
      -h | --help) is_set_up "$extras" || exec sed -n '2,/^$/s/^# //p' "${BASH_SOURCE[0]}" ;;
    esac
  done
  set_up "$extras" || exit
  run=("$root/.venv/bin/python" -m cai_pyserini run "$@")
  [ -z "$config" ] || exec "${run[@]}"
  exec "${run[@]}" --config <(echo "collections: hpo") # which other collections override
fi
