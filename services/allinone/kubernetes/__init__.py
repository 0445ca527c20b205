"""The platform on Kubernetes: ``shiftwork k8s``, on top of helm, kubectl and the charts."""
