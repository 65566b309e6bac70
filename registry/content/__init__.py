"""OCI content: uploads, repositories, backup and restore."""
