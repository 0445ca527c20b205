"""Where gangs fit. Imports only ``model``.

- *domain*: a part of the network (zone, spine, leaf); domains are nested (``topology.py``).
- *position*: a node's number in its group, in the order of the domains (``node_index.py``).
- *unit*: a GPU, or the whole of a node without GPUs. *Node equivalents* count nodes by their units.
- *slot*: what one rank takes of one node; *share*: what all ranks of a gang take of one
  (``slots.py``). *Pick*: slots for a whole gang; of ranks that differ or share nodes by
  ``packing.py``.
- *capacity*: what is free, by group (``capacity.py`` over ``free_nodes.py``); *remaining resource*:
  the CPUs or memory that are left (``node_resources.py``).
"""
