"""OCI content: blobs, uploads, images, repositories."""
