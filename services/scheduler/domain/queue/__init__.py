"""Which waiting task comes next. Imports the model and the limits.

- ``entry.py``: *entry* (a waiting task with its place in the order of a round), *rank*.
- ``queues.py``: *queue* (equivalent tasks), *row*, *shape class*, *branch*.
- ``unserved.py``: the same tasks by how long they go without service.
- ``waiting_order.py``: *order class*: the same tasks in the order in which they are listed.
- ``walk.py``: *walk*: evaluates the entries in order, and skips the queues that cannot move.
"""
