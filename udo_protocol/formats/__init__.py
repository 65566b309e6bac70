"""Files and bodies: manifests, schemas, Arrow bodies, recordings, tar."""
