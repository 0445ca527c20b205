"""submit: owns task specs and goals. See README.md."""
