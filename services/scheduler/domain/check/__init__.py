"""Every way in which a plan can be wrong, found from the bare rows and not by the deciding code.

- ``plan.py``: *check*, the list of *violations* of a plan.
- ``conservation.py``: nothing is held twice, and no limit is passed.
- ``entitlement.py``: *victims* are less entitled than the tasks that they leave for.
- ``node_resources.py``: CPUs and memory of nodes suffice.
- ``isolate.py``: *isolation*: which groups and tasks are left out so that the rest is committed.
"""
