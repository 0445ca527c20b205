"""The limits of a task besides nodes: quotas and virtual clusters. Imports only the model.

- ``quota_usage.py``: *limit*, *account*, *need*, *excess*: which quota rows a task counts for.
- ``virtual_clusters.py``: *virtual cluster*, *guarantee*, *depth* (how well one covers a run).
- ``coverage.py``, ``coverage_tree.py``: *coverage*: the depth of every run of a pool, kept up to
  date change by change.
"""
