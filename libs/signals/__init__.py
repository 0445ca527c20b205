"""Measures machines, GPUs and processes. What the launcher samples on its own machine, and the node
agent on each node of a cluster."""
