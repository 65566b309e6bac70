"""What is verified by many seeded runs: no figure of these is a speed."""
