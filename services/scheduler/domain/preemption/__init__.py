"""Which runs leave for a more entitled task, and how.

- ``victims.py``: *victim*, *candidate*, *trial*: the least that must leave until the gang fits.
- ``defragment.py``: *defragmentation*: runs move together where a guarantee fails only because free
  GPUs are scattered.
- ``release.py``: *release*: a run is requested to leave with a deadline, or is ended by force.
"""
