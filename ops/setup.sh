#!/bin/sh
# Usage: ops/setup.sh [PYTHON]. Finds an interpreter that really runs, and lets it build .venv.
set -eu
cd "$(dirname "$0")/.."

suits() {
    # a shim of a version manager may exist and still refuse to run; some systems split off venv
    "$1" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${1:-}" ]; then
    suits "$1" || { echo "PYTHON=$1 does not run, is older than 3.11, or lacks the venv module" >&2; exit 2; }
    exec "$1" -I ops/setup_venv.py --asked
fi
for python in python3.13 python3.12 python3.11 python3; do
    if suits "$python"; then
        exec "$python" -I ops/setup_venv.py
    fi
done
echo "no Python >= 3.11 with the venv module was found; install one, or name it: make PYTHON=/path/to/python3" >&2
exit 2
