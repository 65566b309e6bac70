"""The ways to call a function from Spark that the benchmarks compare; each file has one, with its server and its worker side."""
