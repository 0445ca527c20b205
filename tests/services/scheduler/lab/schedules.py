"""Schedules worked out by hand: four nodes, a handful of jobs, exact starts and ends per policy.

Times are in hours here and in seconds in the values. Restarts cost nothing, jobs lose nothing,
limits are exact (``requested_s`` is the duration), each job has a user of its own, all one level.
A policy decides at every arrival, end and slice end. ``runs`` are the stretches in which a job
holds its nodes; two that touch are one.

What the policies mean here:

- fifo: first come first served; no job overtakes the head.
- backfill: in order of submission, whatever fits starts; nothing is reserved.
- easy: as fifo, but a job may overtake the head if it does not delay it: it ends before the head's
  reservation, or takes only nodes that the head leaves over then.
- las: attained service (nodes x hours run) below 10 node-hours goes first, then the others; inside
  each queue first come first served; preemptive: in that order, whatever fits runs. A job moves to
  the second queue when it reaches 10 node-hours, also while it runs.
- rotation: slices of one hour. When a slice ends, the job goes to the end of the line; waiting
  jobs start in the line's order when they fit, whatever fits (the head is not waited for). A job
  that arrives joins the end of the line, before those whose slice ends at the same time.
- srpt: shortest remaining time first, then the earlier submitted; preemptive: in that order,
  whatever fits runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.lab.workload import Cluster, Job, Workload, uniform

HOUR = 3600.0
NODES = 4


@dataclass(frozen=True)
class Schedule:
    name: str
    # Submission, duration (hours), nodes.
    jobs: tuple[tuple[float, float, int], ...]
    # For each policy, for each job, the stretches it runs (hours).
    runs: dict[str, tuple[tuple[tuple[float, float], ...], ...]]

    def workload(self) -> Workload:
        jobs = [
            Job(
                number=number,
                submit_s=submit * HOUR,
                duration_s=duration * HOUR,
                nodes=nodes,
                user=f"u{number}",
                requested_s=duration * HOUR,
            )
            for number, (submit, duration, nodes) in enumerate(self.jobs)
        ]
        return Workload(self.name, jobs, Cluster((uniform("default", NODES, 8),)))


# Job        A  B  C  D  E
# submit     0  1  2  3  4
# hours      4  3  2  1  2
# nodes      2  4  2  1  2
#
# fifo: A 0-4 on two nodes. B is the head and needs all four: 4-7; C, D, E wait behind it although
#   two nodes are idle. At 7: C (2), D (1); one node is left, E needs two: D ends at 8, then two are
#   free: E 8-10. C 7-9.
# backfill: C fits the two idle nodes at 2: 2-4. D at 3: none are free. At 4 all are free, in order
#   of submission: B first: 4-7. Then D 7-8 and E (submitted 4) 7-9: 1 + 2 nodes fit at 7.
# easy: B is reserved at 4, when A ends. C at 2 would end at 4, not later than that: 2-4. D at 3
#   finds no node. B 4-7. At 7: D 7-8, E 7-9.
# las: A never reaches 10 node-hours (4 x 2 = 8). B reaches 10 after 2.5 hours of running.
#   First queue by submission: A 0-4 always first. B (4 nodes) does not fit beside A. C 2-4, D does
#   not fit beside A and C. At 4: first queue B, D, E (all 0): B fits and takes all. B runs 4-6.5,
#   then has 10 node-hours: second queue. Now D and E: D 6.5-7.5, E 6.5-8.5; B does not fit (needs
#   four) until 8.5: 8.5-9.
# srpt: 0: A. 1: A has 3 left, B 3: A was submitted before; B does not fit beside it. 2: C (2 left),
#   A (2 left; A is earlier), B: A and C run. 3: A 1, C 1, D 1, B 3: A, C; D does not fit. 4: A and
#   C have ended. D 1, E 2, B 3: D 4-5, E 4-6, B does not fit. 6: B 6-9.
# rotation: 0: A. 1: A's slice ends; the line is B (arrived), A. All four are free: B starts, A
#   waits. 2: C arrives, B's slice ends: line A, C, B: A and C start (2 + 2). 3: D arrives, A and C
#   end slices: line B, D, A, C. B (4) starts, takes all. B has run 1-2, 3-4. 4: E arrives, B's
#   slice ends: D, A, C, E, B: D (1), A (2), then one node is left: C (2) no, E (2) no, B no.
#   5: D is done (3's hour: 4-5). A has run 0-1, 2-3, 4-5: one left. Line C, E, B, A: C (2), E (2)
#   start. 6: C is done (2-3, 5-6). E has one left. Line B, A, E: B starts: 6-7 is its third hour:
#   done. 7: A (2), E (2): 7-8 both done.
PASSING = Schedule(
    name="which jobs may overtake the head",
    jobs=((0, 4, 2), (1, 3, 4), (2, 2, 2), (3, 1, 1), (4, 2, 2)),
    runs={
        "fifo": (((0, 4),), ((4, 7),), ((7, 9),), ((7, 8),), ((8, 10),)),
        "backfill": (((0, 4),), ((4, 7),), ((2, 4),), ((7, 8),), ((7, 9),)),
        "easy": (((0, 4),), ((4, 7),), ((2, 4),), ((7, 8),), ((7, 9),)),
        "las": (((0, 4),), ((4, 6.5), (8.5, 9)), ((2, 4),), ((6.5, 7.5),), ((6.5, 8.5),)),
        "srpt": (((0, 4),), ((6, 9),), ((2, 4),), ((4, 5),), ((4, 6),)),
        "rotation": (
            ((0, 1), (2, 3), (4, 5), (7, 8)),
            ((1, 2), (3, 4), (6, 7)),
            ((2, 3), (5, 6)),
            ((4, 5),),
            ((5, 6), (7, 8)),
        ),
    },
)

# Job        A  B  C  D  E  F
# submit     0  0  1  1  2  3
# hours      6  2  4  5  2  3
# nodes      1  2  3  1  1  1
#
# Backfilling as such: greedy filling delays the gang C, EASY does not, but lets D and E by.
#
# fifo: A 0-6 (1), B 0-2 (2). C (3) at 1: one node is free. At 2 three are free: C 2-6. All four are
#   taken until 6. At 6: D 6-11, E 6-8, F 6-9.
# backfill: at 1 C does not fit, D (1) does: 1-6. At 2 B ends: two free. C needs three: no. E 2-4.
#   One free. At 3: F 3-6. At 4: E ends: one free: C no. At 6 A, D, F end: four free: C 6-10.
# easy: at 1 C is reserved at 2 (B's end: 2 + 1 free = 3 nodes), which leaves none over then. D at 1
#   would end at 6, beyond 2, and no node is left over: it waits. At 2 C 2-6. At 6: D, E, F as fifo.
# las: attained: A reaches 6 node-hours at 6, B 4, C (3 nodes) 10 after 3 h 20 min. Order of
#   submission in the first queue: A, B, C, D, E, F. 1: C does not fit beside A, B; D does: 1-2 at
#   least. 2: B has ended. A, C (1 + 3 = 4) go first: D is sent away. C 2-5:20 (3.3333 h = 10 node-
#   hours), then it is in the second queue with 40 min left. 5:20: A, D, E, F run (1 each = 4): C
#   does not fit. A ends at 6: one free. C needs three. E (2 h) 5:20-7:20. F (3 h) 5:20-8:20. D (has
#   run 1 h, 4 left) 5:20-9:20. At 7:20 two free, at 8:20 three free (A, E, F ended): C 8:20-9:00.
# srpt: 0: B (2), A (6): both run. 1: B 1, C 4, A 5, D 5: B (2), then C (3) does not fit in two, A
#   (1), D (1; same remaining as A, later) fits: A, B, D. 2: B done. E 2, C 4, A 4, D 4: remaining
#   ties C, A, D by submission: numbers A (0), C (2), D (3): order E, A, C, D: E (1), A (1), C (3)
#   no, D (1). One idle. 3: E 1, F 3, A 3, D 3: E, A (number 0), D (3), F (5): all four run (E, A,
#   D, F), C (4) no. 4: E done: A 2, D 2, F 2 run, C no (one free). 6: A, D, F done: C 6-10.
# rotation: 0: A, B start. 1: C, D arrive, then A and B end slices: line C, D, A, B: C (3), D (1)
#   run 1-2. 2: E arrives: line A, B, E, C, D: A (1), B (2), E (1): full, 2-3: B is done. 3: F
#   arrives, A, E end slices: line C, D, F, A, E: C (3), D (1). 4: line F, A, E, C, D: F (1), A
#   (1), E (1), C (3) no, D (1): 4-5: E is done. 5: ended F, A, D (in the order they started): line
#   C, F, A, D: C (3), F (1). 6: line A, D, C, F: A (1), D (1), C (3) no, F (1): F is done at 7
#   (4-5, 5-6, 6-7). One idle. 7: line C, A, D: C (3): its fourth hour (1-2, 3-4, 5-6, 7-8): done
#   at 8; A (1) as well. D waits. 8: line D, A: both run on: A has had 0-1, 2-3, 4-5, 6-7, 7-8: the
#   sixth 8-9: done. D has had 1-2, 3-4, 4-5, 6-7: the fifth 8-9: done.
RESERVING = Schedule(
    name="a gang that greedy filling delays",
    jobs=((0, 6, 1), (0, 2, 2), (1, 4, 3), (1, 5, 1), (2, 2, 1), (3, 3, 1)),
    runs={
        "fifo": (((0, 6),), ((0, 2),), ((2, 6),), ((6, 11),), ((6, 8),), ((6, 9),)),
        "backfill": (((0, 6),), ((0, 2),), ((6, 10),), ((1, 6),), ((2, 4),), ((3, 6),)),
        "easy": (((0, 6),), ((0, 2),), ((2, 6),), ((6, 11),), ((6, 8),), ((6, 9),)),
        "las": (
            ((0, 6),),
            ((0, 2),),
            ((2, 16 / 3), (25 / 3, 9)),
            ((1, 2), (16 / 3, 28 / 3)),
            ((16 / 3, 22 / 3),),
            ((16 / 3, 25 / 3),),
        ),
        "srpt": (((0, 6),), ((0, 2),), ((6, 10),), ((1, 6),), ((2, 4),), ((3, 6),)),
        "rotation": (
            ((0, 1), (2, 3), (4, 5), (6, 9)),
            ((0, 1), (2, 3)),
            ((1, 2), (3, 4), (5, 6), (7, 8)),
            ((1, 2), (3, 5), (6, 7), (8, 9)),
            ((2, 3), (4, 5)),
            ((4, 7),),
        ),
    },
)

# Job        A  B  C  D  E  F  G
# submit     0  1  1  2  2  5  6
# hours      5  6  1  2  4  1  2
# nodes      3  2  1  1  2  4  1
#
# EASY's spare nodes, and a machine-wide gang F.
#
# fifo: A 0-5 (3). B (2) at 1: one is free: it waits, and all behind it. 5: B 5-11 (2), C 5-6 (1),
#   D 5-7 (1): full. E (2): at 6 one is free, at 7 two: E 7-11. F (4) at 11: 11-12. G 12-14.
# backfill: 1: B no, C 1-2. 2: D 2-4, E no. 4: nothing fits one node (B 2, E 2). 5: A ends, four
#   free: B 5-11, E 5-9 (2). F no. 6: G no (0 free). 9: E ends, two free: F no, G 9-11. 11: F 11-12.
# easy: B is reserved at 5, when four are free and it leaves two over. C at 1 ends at 2: 1-2. D at 2
#   ends at 4: 2-4. E (2) never fits one node before 5. 5: B 5-11, E 5-9; F is the head, reserved at
#   11 with none over. G at 6: no node is free until 9; at 9 it would end at 11, not later than F's
#   start: 9-11. F 11-12.
# las: A (3 nodes) reaches 10 after 3:20 of running. First queue by submission: A, B, C, D, E. 0: A.
#   1: A, then C (B does not fit). 2: A, D (C done). 3:20: A in the second queue: B (2), E (2)... D
#   (1) was submitted before E: B, D, then E does not fit in one node; A (3) no. D has run 2-3:20,
#   so it ends at 4. 3:20-4: B, D. 4: B, E. B attains 10 after 5 hours of running, at 8:20; E (2 x
#   4 = 8) never. 5: F arrives: after B and E in the first queue: no. 6: G no (full). 8: E done
#   (4-8): B, then F (4) no, G (1) 8-10; A (3) no. 8:20: B in the second queue. First queue: F (4):
#   fits only if G and B go: F was submitted at 5, G at 6: F first: it takes all: F 8:20-9:20, G
#   has run 20 min, and B and A wait. 9:20: G (1), then the second queue: A (3): 1:40 left:
#   9:20-11. G has 1:40 left: 9:20-11. 11: B has 1 hour left: 11-12.
# srpt: 0: A. 1: C 1, A 4, B 6: C, A. 2: D 2, A 3, E 4, B 6: D, A. 4: A 1, E 4, B 6: A, no node for
#   E, B. 5: F 1, E 4, B 6: F 5-6. 6: G 2, E 4, B 6: G (1), E (2), B no. 8: G done; E 2, B: both.
#   E 6-10, B 8-14.
# rotation: 0: A. 1: B, C arrive, A's slice ends: line B, C, A: B (2), C (1), A (3) no: one idle.
#   2: C done. D, E arrive: line A, D, E, B: A (3), D (1). 3: line E, B, A, D: E (2), B (2). 4: line
#   A, D, E, B: A, D: D is done at 5 (2-3, 4-5). 5: F arrives: line E, B, F, A: E, B. 6: G arrives:
#   line F, A, G, E, B: F (4): done at 7. 7: line A, G, E, B: A (3), G (1). 8: line E, B, A, G: E,
#   B. 9: line A, G, E, B: A (its fifth: 0-1, 2-3, 4-5, 7-8, 9-10: done), G (second: done). 10: E,
#   B: E's fourth (3-4, 5-6, 8-9, 10-11): done. B has had 1-2, 3-4, 5-6, 8-9, 10-11; then 11-12:
#   done.
SPARE = Schedule(
    name="spare nodes, and a gang of the whole machine",
    jobs=((0, 5, 3), (1, 6, 2), (1, 1, 1), (2, 2, 1), (2, 4, 2), (5, 1, 4), (6, 2, 1)),
    runs={
        "fifo": (
            ((0, 5),),
            ((5, 11),),
            ((5, 6),),
            ((5, 7),),
            ((7, 11),),
            ((11, 12),),
            ((12, 14),),
        ),
        "backfill": (
            ((0, 5),),
            ((5, 11),),
            ((1, 2),),
            ((2, 4),),
            ((5, 9),),
            ((11, 12),),
            ((9, 11),),
        ),
        "easy": (
            ((0, 5),),
            ((5, 11),),
            ((1, 2),),
            ((2, 4),),
            ((5, 9),),
            ((11, 12),),
            ((9, 11),),
        ),
        "las": (
            ((0, 10 / 3), (28 / 3, 11)),
            ((10 / 3, 25 / 3), (11, 12)),
            ((1, 2),),
            ((2, 4),),
            ((4, 8),),
            ((25 / 3, 28 / 3),),
            ((8, 25 / 3), (28 / 3, 11)),
        ),
        "srpt": (
            ((0, 5),),
            ((8, 14),),
            ((1, 2),),
            ((2, 4),),
            ((6, 10),),
            ((5, 6),),
            ((6, 8),),
        ),
        "rotation": (
            ((0, 1), (2, 3), (4, 5), (7, 8), (9, 10)),
            ((1, 2), (3, 4), (5, 6), (8, 9), (10, 12)),
            ((1, 2),),
            ((2, 3), (4, 5)),
            ((3, 4), (5, 6), (8, 9), (10, 11)),
            ((6, 7),),
            ((7, 8), (9, 10)),
        ),
    },
)

# Job        A  B  C  D  E
# submit     0  0  0  1  1
# hours      3  8  1  2  5
# nodes      1  1  2  3  1
#
# EASY's second rule: a long job may start beside the head's reservation on a node it leaves over.
#
# fifo: A 0-3, B 0-8, C 0-1 (1 + 1 + 2 = 4). 1: two free; D (3) waits, and E behind it. 3: A ends:
#   three free: D 3-5. 5: E 5-10.
# backfill: 1: D does not fit, E (1) does: 1-6. 3: A ends: two free: D no. 6: three free: D 6-8.
# easy: 1: D is reserved at 3 (A ends: three free, D takes all three, none over). E until 6: it
#   would delay D: waits. As fifo. (The next schedule has the node over.)
# las: nobody reaches 10 node-hours. Order A, B, C, D, E. 1: A, B run; D (3) no, E 1-... 3: A ends.
#   Order B, D, E: B (1) + D (3) = 4: E is sent away. D 3-5. 5: E has run 1-3, 3 left: 5-8.
# srpt: 0: C 1, A 3, B 8: all. 1: A 2, D 2, E 5, B 7: A, D (3): full; E and B wait; B ran 0-1.
#   3: both done: E 5, B 7: E 3-8, B 3-10.
# rotation: 0: A, B, C. 1: C done; D, E arrive; line D, E, A, B: D (3), E (1). 2: line A, B, D, E:
#   A, B, D (3) no, E: 2-3. One idle. 3: line D, A, B, E: D (3): its second: done at 4; A (1): 3-4:
#   A has had 0-1, 2-3, 3-4: done. 4: B, E alone: both run to their ends: B has had 0-1, 2-3: six
#   left: 4-10. E has had 1-2, 2-3: three left: 4-7.
SENT_AWAY = Schedule(
    name="which job is preempted",
    jobs=((0, 3, 1), (0, 8, 1), (0, 1, 2), (1, 2, 3), (1, 5, 1)),
    runs={
        "fifo": (((0, 3),), ((0, 8),), ((0, 1),), ((3, 5),), ((5, 10),)),
        "backfill": (((0, 3),), ((0, 8),), ((0, 1),), ((6, 8),), ((1, 6),)),
        "easy": (((0, 3),), ((0, 8),), ((0, 1),), ((3, 5),), ((5, 10),)),
        "las": (((0, 3),), ((0, 8),), ((0, 1),), ((3, 5),), ((1, 3), (5, 8))),
        "srpt": (((0, 3),), ((0, 1), (3, 10)), ((0, 1),), ((1, 3),), ((3, 8),)),
        "rotation": (
            ((0, 1), (2, 4)),
            ((0, 1), (2, 3), (4, 10)),
            ((0, 1),),
            ((1, 2), (3, 4)),
            ((1, 3), (4, 7)),
        ),
    },
)

# Job        A  B  C  D  E  F
# submit     0  1  2  2  3  3
# hours      4  2  6  1  1  8
# nodes      2  3  1  1  1  1
#
# easy: B (3) is reserved at 4 (A ends: four free), which leaves one over. C (1, 6 h) at 2 takes the
#   one that is left over: 2-8. D (1, 1 h) at 2 ends at 3, before 4: 2-3. E at 3 ends at 4: 3-4. F
#   (8 h) at 3: no node is free. 4: A and E end: three free: B 4-6. F needs one: none. 6: F 6-14.
# fifo: B waits until 4 and takes three; C behind it: 4-10 on the fourth. 6: D 6-7, E 6-7, F 6-14
#   (three free).
# backfill: 2: C 2-8, D 2-3. 3: E 3-4 (before F in order). 4: A, E end: three free: B 4-6. 6: F
#   6-14.
# las: B 3 x 2 = 6, none reaches 10. Order A, B, C, D, E, F. 2: A, C, D (B no). 3: A, C, E. 4: B
#   (3), C. 6: C, F: F 6-14. The same as easy.
# srpt: 0: A 4. 1: B 2 (3 nodes), A 3 (2 nodes): B 1-3, A is sent away; one idle. 2: B 1, D 1, A 3,
#   C 6: B (3), D (1): full. 3: B, D done: E 1, A 3, C 6, F 8: E, A (2), C (1): full. 4: A 2, C 5,
#   F 8: A, C, F. A 3-6, C 3-9, F 4-12.
# rotation: 0: A. 1: B arrives: line B, A: B (3), A (2) no. 2: C, D arrive: line A, C, D, B: A (2),
#   C, D: D done at 3. 3: E, F arrive: line B, E, F, A, C: B (3): done at 4; E (1): done at 4. 4:
#   line F, A, C: all fit (1 + 2 + 1): F 4-12, A has had 0-1, 2-3: 4-6, C has had 2-3: 4-9.
LEFT_OVER = Schedule(
    name="a node that the reservation leaves over",
    jobs=((0, 4, 2), (1, 2, 3), (2, 6, 1), (2, 1, 1), (3, 1, 1), (3, 8, 1)),
    runs={
        "fifo": (((0, 4),), ((4, 6),), ((4, 10),), ((6, 7),), ((6, 7),), ((6, 14),)),
        "backfill": (((0, 4),), ((4, 6),), ((2, 8),), ((2, 3),), ((3, 4),), ((6, 14),)),
        "easy": (((0, 4),), ((4, 6),), ((2, 8),), ((2, 3),), ((3, 4),), ((6, 14),)),
        "las": (((0, 4),), ((4, 6),), ((2, 8),), ((2, 3),), ((3, 4),), ((6, 14),)),
        "srpt": (((0, 1), (3, 6)), ((1, 3),), ((3, 9),), ((2, 3),), ((3, 4),), ((4, 12),)),
        "rotation": (
            ((0, 1), (2, 3), (4, 6)),
            ((1, 2), (3, 4)),
            ((2, 3), (4, 9)),
            ((2, 3),),
            ((3, 4),),
            ((4, 12),),
        ),
    },
)

SCHEDULES = (PASSING, RESERVING, SPARE, SENT_AWAY, LEFT_OVER)
