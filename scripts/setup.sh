#!/usr/bin/env bash
# Builds .venv from requirements.lock; run by the Makefile, reused while neither lock nor pyproject.toml changes.
set -euo pipefail
cd "$(dirname "$0")/.."

give_up() { echo "set-up: $1" >&2; exit 1; }
is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }

# 1. uv: the one on PATH, the one fetched earlier, else fetched by the pip of whatever Python 3 there is.
if command -v uv >/dev/null 2>&1; then
  uv=uv
else
  uv=.tools/uv/bin/uv
  if [ ! -x "$uv" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .tools/uv uv ||
      give_up "cannot get uv: install it from https://docs.astral.sh/uv/ or install pip for python3, then run make again"
  fi
fi

# 2. An interpreter >= 3.12: on PATH, else an inactive pyenv version, else one that uv manages (downloads).
find_python() {
  local candidate root
  for candidate in python3.12 python3.13 python3.14 python3 python; do
    if is_recent "$candidate"; then command -v "$candidate"; return; fi
  done
  root=${PYENV_ROOT:-$HOME/.pyenv}
  for candidate in "$root"/versions/3.1[2-9]*/bin/python; do
    if is_recent "$candidate"; then echo "$candidate"; return; fi
  done
  "$uv" python install 3.12 >&2 && "$uv" python find 3.12
}

if ! is_recent .venv/bin/python; then
  python=$(find_python) && [ -n "$python" ] ||
    give_up "no Python >= 3.12 found and none could be downloaded: install one (for example apt install python3.12 python3.12-venv), then run make again"
  echo "set-up: making .venv with $("$python" --version 2>&1)" >&2
  "$uv" venv --quiet --clear --python "$python" .venv || give_up "cannot make .venv: remove the folder and run make again"
fi

# 3. The pinned, hashed packages, then this checkout itself, byte code compiled once.
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes --compile-bytecode requirements.lock ||
  give_up "installing requirements.lock failed (message above): check network and disk (7 GB), then run make again"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable . ||
  give_up "installing bayeslaw itself failed (message above)"
touch .venv/ready
