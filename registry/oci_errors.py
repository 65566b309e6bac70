"""Errors of the OCI distribution API: each is one of udo_protocol.errors with the code the specification gives it."""

from __future__ import annotations

from typing import Any

from udo_protocol import errors
from udo_protocol.errors import ManifestError, NotFound, UdoError, UsageError


class NameInvalid(UsageError):
    """A repository name or tag outside the specification's grammar."""

    oci, status = "NAME_INVALID", 400


class NameUnknown(NotFound):
    """No repository of that name."""

    oci, status = "NAME_UNKNOWN", 404


class BlobUnknown(NotFound):
    """The repository has no such blob."""

    oci, status = "BLOB_UNKNOWN", 404


class ManifestUnknown(NotFound):
    """The repository has no such manifest or tag."""

    oci, status = "MANIFEST_UNKNOWN", 404


class ManifestInvalid(ManifestError):
    """Not an image manifest or index in a form that the registry stores."""

    oci, status = "MANIFEST_INVALID", 400


class ManifestBlobUnknown(ManifestError):
    """A manifest came before content that it refers to."""

    oci, status = "MANIFEST_BLOB_UNKNOWN", 404


class DigestInvalid(UsageError):
    """Not a digest, or not that of the content."""

    oci, status = "DIGEST_INVALID", 400


class SizeInvalid(UsageError):
    """More bytes than allowed."""

    oci, status = "SIZE_INVALID", 413


class UploadUnknown(NotFound):
    """No such upload: finished, cancelled, or expired after a time without a byte."""

    oci, status = "BLOB_UPLOAD_UNKNOWN", 404


class UploadInvalid(UsageError):
    """The upload cannot take this request; begin again, or continue at its present size."""

    oci, status = "BLOB_UPLOAD_INVALID", 400


class TooManyUploads(errors.Unavailable):
    """As many uploads are under way as the registry allows, none of them silent."""

    oci, status = "TOOMANYREQUESTS", 429


class UploadBusy(errors.Unavailable):
    """Another request, perhaps one whose connection broke, has the upload at this moment."""

    oci, status = "BLOB_UPLOAD_INVALID", 400


class RangeInvalid(errors.Unavailable):
    """A chunk that does not begin at the upload's present size; one that does is taken."""

    oci, status = "BLOB_UPLOAD_INVALID", 416

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class PaginationInvalid(UsageError):
    """`n` is not a number."""

    oci, status = "PAGINATION_NUMBER_INVALID", 400


class Unsigned(errors.SignatureError):
    """The image would become an operator version, and no trusted key has signed it."""

    oci, status = "DENIED", 403


class InUse(errors.Conflict):
    """The content to delete is still referred to."""

    oci, status = "DENIED", 405


_BY_CLASS = {
    errors.Unauthorized: "UNAUTHORIZED",
    ManifestError: "MANIFEST_INVALID",
    errors.Conflict: "DENIED",
    NotFound: "MANIFEST_UNKNOWN",
}
_BY_STATUS = {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 405: "UNSUPPORTED", 413: "SIZE_INVALID", 416: "SIZE_INVALID"}


def form(e: Exception, status: int, code: str, message: str, retry: bool) -> dict[str, Any]:
    """The specification's JSON; `detail` has the fields that udo's own clients read."""
    oci = getattr(e, "oci", None)
    if oci is None and isinstance(e, UdoError):
        oci = next((o for cls, o in _BY_CLASS.items() if isinstance(e, cls)), None)
    oci = oci or _BY_STATUS.get(status) or ("UNAVAILABLE" if status >= 500 else "UNSUPPORTED")
    return {"errors": [{"code": oci, "message": message, "detail": {"code": code, "retry": retry}}]}
