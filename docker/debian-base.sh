#!/bin/sh
# Makes a base image with Debian's Python from Debian packages, for machines that cannot pull python:3.11-slim.
# Needs root, debootstrap, and a Docker daemon. Usage: docker/debian-base.sh [IMAGE]; MIRROR and SUITE may be set.
set -eu
image=${1:-udo-debian-python:bookworm}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=python3,ca-certificates "${SUITE:-bookworm}" "$root" ${MIRROR:+"$MIRROR"} >&2
tar -C "$root" -c --exclude=./var/cache/apt/* --exclude=./var/lib/apt/lists/* --exclude=./usr/share/doc/* \
  --exclude=./usr/share/man/* --exclude=./usr/share/locale/* --exclude=./dev/* . |
  docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' --change 'CMD ["python3"]' - "$image" >&2
echo "$image"
