"""A real Kubernetes on this machine, without a container registry: for tests, demos and people."""
