"""Media types of images: those of the OCI image specification 1.1, and Docker's own for the same."""

from __future__ import annotations

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
OCI_TAR = "application/vnd.oci.image.layer.v1.tar"
OCI_TAR_GZIP = f"{OCI_TAR}+gzip"

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_TAR = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_TAR_GZIP = f"{DOCKER_TAR}.gzip"
