"""log-collector: owns kept output and its index. See README.md."""
