#!/bin/sh
# Makes a base image with Debian's Python from Debian packages, for machines that cannot pull python:3.11-slim.
# Needs root, mmdebstrap, and a Docker daemon. Usage: docker/debian-base.sh [IMAGE]; MIRROR, SUITE, and PACKAGES (more of them) may be set.
set -eu
image=${1:-udo-debian-python:bookworm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unread='--dpkgopt=path-exclude=/usr/share'
mmdebstrap --variant=minbase --include="python3,ca-certificates${PACKAGES:+,$PACKAGES}" --skip=output/dev --dpkgopt=force-unsafe-io \
  "$unread/doc/*" "$unread/man/*" "$unread/locale/*" --essential-hook='mkdir -p "$1/usr/share/man/man1"' "${SUITE:-bookworm}" "$work/base.tar" ${MIRROR:+"$MIRROR"} >&2
docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' --change 'CMD ["python3"]' \
  "$work/base.tar" "$image" >&2
echo "$image"
