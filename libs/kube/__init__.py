"""The client of the Kubernetes API; see README.md."""
