#!/bin/sh
# Builds the runtime base udo-runtime-python:cpXY in the local Docker daemon, where node managers look for it.
# Usage: docker/runtime.sh [BASE]; BASE is any Debian-like image with python3, by default python:3.11-slim. Without Docker
# Hub: docker/runtime.sh "$(docker/debian-base.sh)". For other nodes: udo registry base push udo-runtime-python:cp311
set -eu
cd "$(dirname "$0")/.."
. docker/target.sh
tag=cp$(echo "$1" | tr -d .)
"$python" -m uv pip install --quiet --target "$context/runtime" --python-version "$1" --python-platform "$2-manylinux_2_28" \
  --only-binary :all: --no-deps --link-mode copy --constraints requirements.lock pyarrow protobuf msgpack
rm -rf "$context/runtime/pyarrow/include" "$context/runtime/pyarrow/tests" "$context/runtime/bin"
cp -R udo_protocol runtimes/python/udo_runtime "$context/runtime/"
find "$context/runtime" -name __pycache__ -prune -exec rm -rf {} +
chmod -R a+rX "$context/runtime"
docker build --quiet --network none --build-arg BASE="$base" --build-arg PYTHON_TAG="$tag" --tag "udo-runtime-python:$tag" \
  --file docker/runtime-python.Dockerfile "$context" >&2
echo "udo-runtime-python:$tag"
