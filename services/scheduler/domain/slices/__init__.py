"""What time does to the order of the tasks of one level: time slices, and what they cost.

- ``order_keys.py``: *order key*, *slice end*, *load sample*.
- ``levels.py``: *level*, *demotion*: the level at which a run counts.
- ``slice_round.py``: *slice round*: a waiting task takes the nodes of later runs of its own level.
- ``budgets.py``: *preemption budget*: node-seconds that slice rounds may cost.
- ``starvation.py``: *starvation grant*: the task that is longest without service comes first.

What one round of ``decide`` calls for a pool with the ``timeshare`` policy::

    allocate.allocate
      order_keys.sample_load              every half hour: the load scale of all order keys
      order_keys.end_slices               runs whose slice is over
        timeshare.discipline.slice_over       rule.delay, of history.index (the Gittins index)
      levels.update_levels                demotions and raises, as far as quotas admit them
      Allocation.run
        Promises.sort_out                 withdraw what cannot be kept, find what is free by now
        order_keys.set_waiting_key        tasks without an order key
          timeshare.discipline.waiting        rule.delay, of history.index; rule.tag
        starvation.grant                  one task, if the slice round is open and the account pays
        queue.walk.QueueWalk.walk         first with the slice round closed, then with it open
          Allocation.evaluate
            blockers.blocked_by           retry time, size, limits; blockers.flood_reason
            Capacity.pick                 free nodes; the run starts
              order_keys.starting_key
                timeshare.discipline.starting     rule.slice_seconds, rule.hold_seconds
            victims.find                  nodes of lower levels, or under a guarantee
            defragment.find               runs moved together
            SliceRound.take               nodes of equals whose key is larger by a margin
              timeshare.discipline.reach      rule.margin_seconds
              budgets.account_now         pay, or save for it
"""
