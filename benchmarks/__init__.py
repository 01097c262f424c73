"""What is fast, and compared with what: `python -m benchmarks`. See README.md here."""
