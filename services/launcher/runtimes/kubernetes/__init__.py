"""Ranks as pods of a Kubernetes cluster.

``runtime.py`` is the adapter. Below it: ``transport.py`` (the door to kubernetes_asyncio),
``client.py`` (calls, retries, limits), ``reflector.py`` (list, watch), ``cache.py`` with
``pods.py``, ``nodes.py`` and ``pod_state.py`` (what is known), ``fence.py`` (one leader).

Rights in the namespace of the tasks: pods get, list, watch, create, delete; pods/exec get, create
(signals); configmaps get, list, watch, create, patch, delete; secrets create; services create;
events list. In the cluster: nodes and pods list, watch. ``check.RIGHTS`` is the same as a table.
"""
