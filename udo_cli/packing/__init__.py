"""From an operator's folder to an OCI image, without Docker: check, resolve, pack. Uploads are the push command's."""
