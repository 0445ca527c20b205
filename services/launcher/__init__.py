"""The launcher: owns runs as observed, the nodes, and the checkpoints."""
