"""The ways to call one function from Spark that `throughput` compares; each file is one of them, server and worker side."""
