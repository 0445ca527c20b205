"""Ranks as pods of a Kubernetes cluster.

``runtime.py`` is the adapter. It uses ``libs.kube`` (calls, watches, retries, limits),
``reflector.py`` (list and watch), ``cache.py`` with ``pods.py``, ``cluster_nodes.py`` and
``pod_state.py`` (the known state), ``run_objects.py`` (creates and deletes) and ``epoch_fence.py``
(one leader). ``cluster_check.RIGHTS`` lists the rights that it needs.
"""
