"""What the platform costs and how fast it is, measured: `python -m benchmarks NAME`. Nothing here is shipped."""
