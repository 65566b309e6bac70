# Sourced by runtime.sh and platform.sh, whose first argument is the base image. Sets $base, $python (which builds), $context
# (removed at the end), and as $1 and $2 the version of the base's Python and its machine.
base=${1:-python:3.11-slim}
python=${PYTHON:-.venv/bin/python}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
asked='import sys, platform; print("%d.%d" % sys.version_info[:2], platform.machine())'
# shellcheck disable=SC2046
set -- $(docker run --rm --network none --entrypoint python3 "$base" -c "$asked")
