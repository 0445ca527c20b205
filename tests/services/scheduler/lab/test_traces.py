from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from libs.contracts.messages import Priority
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces.fitting import Request, level_table
from services.scheduler.lab.traces.load import load
from services.scheduler.lab.workload import Job, RoleSize, Workload

HEAD = "submit_time_s,duration_s,num_gpus,user,vc"


def read(
    tmp_path: Path, text: str, name: str = "trace.csv", request: Request | None = None
) -> Workload:
    path = tmp_path / name
    path.write_text(text)
    return load(path, request or Request(nodes=4))


def shapes(workload: Workload) -> list[tuple[float, int, int | None]]:
    return [(job.submit_s, job.nodes, job.gpus_per_node) for job in workload.jobs]


# --- our CSV --------------------------------------------------------------------------------


def test_gpus_become_one_node_or_whole_nodes(tmp_path: Path) -> None:
    rows = "\n".join(f"0,60,{gpus},u,v" for gpus in (0, 1, 7, 8, 9, 32))
    assert [shape[1:] for shape in shapes(read(tmp_path, f"{HEAD}\n{rows}\n"))] == [
        (1, 0),
        (1, 1),
        (1, 7),
        (1, None),
        (2, None),
        (4, None),
    ]


def test_nodes_count_where_they_are_given(tmp_path: Path) -> None:
    text = f"{HEAD},num_nodes\n0,60,16,u,v,2\n0,60,4,u,v,2\n0,60,,u,v,3\n0,60,99,u,v,1\n"
    found = [shape[1:] for shape in shapes(read(tmp_path, text))]
    assert found == [(2, None), (2, 2), (3, None), (1, None)]


def test_optional_columns(tmp_path: Path) -> None:
    text = (
        f"{HEAD},requested_s,priority,gpu_milli,other\n"
        "5,60,1,,v,120,high,1000,x\n6,61,1,eve,w,-1,,460,y\n"
    )
    workload = read(tmp_path, text)
    assert workload.jobs[0] == Job(0, 0.0, 60.0, 1, 1, "", "v", Priority.HIGH, 120.0)
    assert workload.jobs[1] == Job(1, 1.0, 61.0, 1, 1, "eve", "w", Priority.NORMAL, None)
    assert workload.notes == ("1 job used a part of a GPU: counted as a whole one",)


def test_gzip_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(f"{HEAD}\n0,60,1,u,v\n".encode()))
    assert len(load(path, Request(nodes=1)).jobs) == 1


def test_out_of_order_rows_are_sorted_with_a_note(tmp_path: Path) -> None:
    workload = read(tmp_path, f"{HEAD}\n100,1,1,a,v\n40,2,1,b,v\n70,3,1,c,v\n")
    assert [(job.number, job.submit_s, job.user) for job in workload.jobs] == [
        (0, 0.0, "b"),
        (1, 30.0, "c"),
        (2, 60.0, "a"),
    ]
    assert workload.notes == ("2 lines are out of order: sorted by submission",)


BAD_ROWS = {
    "-1,60,1,u,v": "submit_time_s is '-1': it cannot be negative",
    "0,-60,1,u,v": "duration_s is '-60': it cannot be negative",
    "nan,60,1,u,v": "submit_time_s is 'nan': write a finite number of seconds",
    "0,inf,1,u,v": "duration_s is 'inf': write a finite number of seconds",
    "1700000000000,1,1,u,v": "submit_time_s is '1700000000000': above 1e+11; is it in milliseconds",
    "0,60,many,u,v": "num_gpus is 'many': write a whole number",
    "0,60,1.5,u,v": "num_gpus is '1.5': write a whole number",
    "0,60,-8,u,v": "num_gpus is '-8': it must be from 0 to 1000000",
    "0,60,99999999999,u,v": "it must be from 0 to 1000000",
    "0,60,,u,v": "num_gpus is empty",
    "0,60,40,u,v": "a gang of 5 whole nodes: group default has 4",
    "0,60": "it has 2 columns: the header has 5",
    ",60,1,u,v": "submit_time_s is ''",
}


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_is_left_out_and_reported_with_its_line(tmp_path: Path, row: str) -> None:
    workload = read(tmp_path, f"{HEAD}\n0,60,1,u,v\n{row}\n9,60,1,u,v\n")
    assert (len(workload.jobs), workload.skipped) == (2, 1)
    assert workload.notes[0] == "1 of 3 lines are bad and left out:"
    assert f"{tmp_path / 'trace.csv'}:3: " in workload.notes[1]
    assert BAD_ROWS[row] in workload.notes[1]


def test_too_many_bad_rows_are_refused_and_the_first_twenty_reported(tmp_path: Path) -> None:
    text = f"{HEAD}\n" + "0,60,1,u,v\n" * 500 + "0,-1,1,u,v\n" * 30
    with pytest.raises(LabError) as refused:
        read(tmp_path, text)
    lines = refused.value.what.splitlines()
    assert lines[0] == "30 of 530 lines are bad (limit 10)"
    assert lines[1].endswith("trace.csv:502: duration_s is '-1': it cannot be negative")
    assert (len(lines), lines[-1].strip()) == (22, "… and 10 more")
    allowed = read(tmp_path, text, request=Request(nodes=4, bad_share_max=0.1))
    assert (len(allowed.jobs), allowed.skipped) == (500, 30)


def test_with_a_limit_only_the_lines_up_to_its_last_job_count(tmp_path: Path) -> None:
    good, bad = "0,60,1,u,v\n", "0,-1,1,u,v\n"
    text = f"{HEAD}\n{good}{bad}" + good * 99 + bad * 30
    workload = read(tmp_path, text, request=Request(nodes=4, limit=50))
    assert (len(workload.jobs), workload.skipped) == (50, 1)
    assert workload.notes[0] == "1 of 51 lines are bad and left out:"
    with pytest.raises(LabError, match=r"31 of 131 lines are bad \(limit 10\)"):
        read(tmp_path, text, request=Request(nodes=4, limit=101))


def test_the_limit_of_bad_lines_is_a_whole_number(tmp_path: Path) -> None:
    text = f"{HEAD}\n" + "0,60,1,u,v\n" * 1000 + "x\n" * 130
    with pytest.raises(LabError, match=r"130 of 1130 lines are bad \(limit 11\)"):
        read(tmp_path, text)


def test_one_percent_may_be_bad(tmp_path: Path) -> None:
    text = f"{HEAD}\n" + "0,60,1,u,v\n" * 1985 + "x\n" * 15
    assert read(tmp_path, text).skipped == 15


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "format"),
        (b"a,b,c\n1,2,3\n", "header"),
        (HEAD.encode() + b"\n", "holds no job"),
        (b"x" * (1024 * 1024 + 1), "longer than"),
        (b"\x1f\x8bbroken", "cannot be read"),
        (gzip.compress(HEAD.encode() * 100)[:-9], "cannot be read"),
    ],
    ids=["empty", "columns", "no jobs", "a long line", "broken gzip", "half a gzip"],
)
def test_files_that_are_no_traces(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(LabError, match=what) as refused:
        load(path, Request(nodes=4))
    assert str(path) in refused.value.where
    assert refused.value.fix


def test_a_missing_file_and_an_unknown_size(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="No such file"):
        load(tmp_path / "none.csv", Request(nodes=4))
    with pytest.raises(LabError) as refused:
        read(tmp_path, f"{HEAD}\n0,60,1,u,v\n", request=Request())
    assert refused.value.fix == "--nodes N"


def test_limit_takes_the_first_by_submission(tmp_path: Path) -> None:
    text = f"{HEAD}\n50,1,1,late,v\n0,1,1,a,v\n9,1,1,b,v\n"
    workload = read(tmp_path, text, request=Request(nodes=4, limit=2))
    assert [job.user for job in workload.jobs] == ["a", "b"]


# --- SWF ------------------------------------------------------------------------------------

SWF = """\
; Computer: a machine
; MaxNodes: 4
; MaxProcs: 8
; Note: two processors each
1 0 5 100 3 -1 -1 3 200 -1 1 7 2 -1 1 -1 -1 -1
2 10 5 -1 2 -1 -1 2 200 -1 5 7 2 -1 1 -1 -1 -1
3 20 5 50 -1 -1 -1 8 -1 -1 0 -1 -1 -1 1 -1 -1 -1
4 30 5 50 1 -1 -1 1 -1 -1 2 3 1 -1 1 -1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    workload = read(tmp_path, SWF, "kth.swf", Request())
    assert workload.nodes == 4
    assert workload.jobs == [
        Job(0, 0.0, 100.0, 2, None, "u7", "g2", requested_s=200.0),
        Job(1, 20.0, 50.0, 4, None, "", ""),
    ]
    assert workload.skipped == 2
    assert "2 processors make a node" in workload.notes[0]


def test_swf_is_known_by_its_lines(tmp_path: Path) -> None:
    assert len(read(tmp_path, SWF, "trace.txt", Request()).jobs) == 2


def test_a_broken_swf_line_is_reported(tmp_path: Path) -> None:
    workload = read(
        tmp_path, SWF + "5 40 1\n6 x 5 50 1 -1 -1 1 -1 -1 1 3 1 -1 1 -1 -1 -1\n", "a.swf"
    )
    notes = [note.rpartition("a.swf:")[2] for note in workload.notes if "a.swf:" in note]
    assert notes == [
        "9: it has 3 fields: the format has 18",
        "10: submit time is 'x': write a number of seconds",
    ]


# --- Kueue ----------------------------------------------------------------------------------

KUEUE = """\
cohorts:
  - className: cohort
    count: 2
    queuesSets:
    - className: cq
      count: 2
      nominalQuota: 5
      borrowingLimit: 10
      reclaimWithinCohort: Any
      withinClusterQueue: LowerPriority
      workloadsSets:
      - count: 3
        creationIntervalMs: 100
        workloads:
        - {className: small, runtimeMs: 200, priority: 50, request: 1}
      - count: 1
        creationIntervalMs: 1200
        workloads:
        - {className: large, runtimeMs: 1000, priority: 200, request: "5"}
        - {className: medium, runtimeMs: 500, priority: 100, request: 2000m}
"""


def test_kueue_generator_is_expanded(tmp_path: Path) -> None:
    workload = read(tmp_path, KUEUE, "generator.yaml", Request())
    assert (len(workload.jobs), workload.nodes) == (2 * 2 * 5, 20)
    mine = [job for job in workload.jobs if job.team == "cq-0-1-cohort-1"]
    assert [
        (round(job.submit_s + 0.1, 3), job.duration_s, job.nodes, job.priority) for job in mine
    ] == [
        (0.1, 0.2, 1, Priority.BELOW_NORMAL),
        (0.2, 0.2, 1, Priority.BELOW_NORMAL),
        (0.3, 0.2, 1, Priority.BELOW_NORMAL),
        (1.2, 1.0, 5, Priority.HIGH),
        (2.4, 0.5, 2, Priority.NORMAL),
    ]
    clusters = {each.name: each for each in workload.virtual_clusters}
    assert clusters["cohort-1"].nodes == 10
    queue = clusters["cq-0-1-cohort-1"]
    assert (queue.nodes, queue.nodes_max, queue.parent) == (5, 15, "cohort-1")
    assert workload.notes == ()


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("nominalQuota", "quota", "cohorts[0].queuesSets[0]: unknown key 'quota'"),
        ("count: 3", "count: many", "workloadsSets[0].count: it is 'many'"),
        ("request: 1}", "request: 1500m}", "workloads[0].request: it is '1500m'"),
        ("cohorts:", "cohorts: []\nx:", "unknown key 'x'"),
        ("count: 3", "count: 3000000", "it is 3000000"),
    ],
)
def test_a_wrong_kueue_generator_is_refused_with_the_path(
    tmp_path: Path, old: str, new: str, path: str
) -> None:
    with pytest.raises(LabError) as refused:
        read(tmp_path, KUEUE.replace(old, new), "generator.yaml", Request())
    assert path in str(refused.value)
    assert refused.value.fix


def test_kueue_generator_on_too_few_nodes(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="guaranteed 20 nodes: --nodes is 10"):
        read(tmp_path, KUEUE, "generator.yaml", Request(nodes=10))


def test_kueue_expansion_shares_the_nodes_out_evenly(tmp_path: Path) -> None:
    text = (
        "submit_time_s,duration_s,units,cohort,cluster_queue,priority,cls\n"
        "0.1,0.2,1,c0,q0,50,small\n0.1,0.5,5,c0,q1,100,medium\n0.2,1,20,c1,q2,200,large\n"
    )
    workload = read(tmp_path, text, request=Request(nodes=60))
    assert [job.nodes for job in workload.jobs] == [1, 5, 20]
    guaranteed = {each.name: each.nodes for each in workload.virtual_clusters}
    assert guaranteed == {"c0": 40, "c1": 20, "q0": 20, "q1": 20, "q2": 20}
    assert workload.virtual_cluster_of(workload.jobs[2]) == "q2"


# --- history --------------------------------------------------------------------------------

TASK = {
    "id": "t1",
    "owner": "alice",
    "team": "vision",
    "group": "default",
    "priority": "high",
    "nodes": 2,
    "gpus_per_node": None,
    "state": "succeeded",
    "attempt": 1,
    "max_run_seconds": 7200.0,
    "submitted_at": "2026-11-21T10:00:00Z",
    "started_at": "2026-11-21T10:05:00.5Z",
    "finished_at": "2026-11-21T11:05:00.5Z",
}


def history(**changes: object) -> str:
    return json.dumps(TASK | changes)


def test_history_lines(tmp_path: Path) -> None:
    lines = [
        history(submitted_at="2026-11-21T10:00:30Z", gpus_per_node=2, max_run_seconds=None),
        history(),
        history(state="running", finished_at=None),
        history(state="rejected", started_at=None),
    ]
    workload = read(tmp_path, "\n".join(lines), "week.jsonl")
    assert workload.jobs == [
        Job(0, 0.0, 3600.0, 2, None, "alice", "vision", Priority.HIGH, 7200.0),
        Job(1, 30.0, 3600.0, 2, 2, "alice", "vision", Priority.HIGH, None),
    ]
    assert workload.skipped == 2


@pytest.mark.parametrize("form", ["items", "array", "pretty"])
def test_history_as_one_document(tmp_path: Path, form: str) -> None:
    tasks = [TASK, TASK]
    text = {
        "items": json.dumps({"items": tasks, "next_cursor": None}),
        "array": json.dumps(tasks),
        "pretty": json.dumps({"items": tasks}, indent=2),
    }[form]
    assert len(read(tmp_path, text, "week.json").jobs) == 2


def test_work_of_interrupted_tasks(tmp_path: Path) -> None:
    runs = [
        {"started_at": "2026-11-21T10:05:00Z", "exit": {"exited_at": "2026-11-21T10:15:00Z"}},
        {"started_at": "2026-11-21T11:00:00Z", "exit": {"exited_at": "2026-11-21T11:05:00Z"}},
    ]
    lines = [
        history(attempt=3),
        history(attempt=2, run_seconds=42.0),
        history(attempt=2, runs=runs),
    ]
    workload = read(tmp_path, "\n".join(lines), "week.jsonl")
    assert [job.duration_s for job in workload.jobs] == [3600.0, 42.0, 900.0]
    assert workload.notes[0].startswith("the work of 1 interrupted task is")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{broken}", "it is no JSON object of a task"),
        ("[1]", "it is no JSON object of a task"),
        (history(submitted_at="yesterday"), "submitted_at is 'yesterday'"),
        (history(submitted_at="2026-11-21T10:00:00"), "it has no time zone"),
        (history(finished_at="2026-11-21T10:00:00Z"), "it cannot be negative"),
        (history(nodes=0), "nodes is '0'"),
        (history(priority="urgent"), "priority is 'urgent'"),
        (history(roles=5), "roles is 5"),
        (history(roles=[5]), "roles[0] is 5"),
        (history(roles=[{"replicas": 0}]), "roles[0].replicas is '0'"),
        (history(roles=[{"replicas": 1, "gpus": -1}]), "roles[0].gpus is '-1'"),
    ],
)
def test_bad_tasks_are_reported(tmp_path: Path, line: str, what: str) -> None:
    workload = read(tmp_path, f"{history()}\n{line}\n", "week.jsonl")
    assert (len(workload.jobs), workload.skipped) == (1, 1)
    assert what in workload.notes[1]


ROLE = {"name": "worker", "replicas": 8, "gpus": 1}


def test_a_gang_whose_ranks_share_nodes_takes_as_few_as_hold_it(tmp_path: Path) -> None:
    board = {"name": "board", "replicas": 1, "auxiliary": True, "cpus": 2.0}
    lines = [
        history(nodes=8, roles=[ROLE]),
        history(nodes=9, roles=[ROLE | {"replicas": 9}, board]),
        # Nothing to pack: a node for each rank, as older histories have it.
        history(nodes=2, gpus_per_node=4, roles=[{"name": "worker", "replicas": 2}]),
        history(nodes=2, roles=[ROLE | {"replicas": 2, "spread": True}]),
        history(nodes=1, roles=[ROLE | {"replicas": 1}]),
    ]
    workload = read(tmp_path, "\n".join(lines), "week.jsonl")
    assert [(job.nodes, job.gpus_per_node) for job in workload.jobs] == [
        (1, 8),
        (2, 8),
        (2, 4),
        (2, 1),
        (1, 1),
    ]
    assert [workload.share(job) for job in workload.jobs] == [1.0, 1.125, 1.0, 0.25, 0.125]
    assert workload.jobs[0].roles == (RoleSize("worker", 8, 1, spread=False, auxiliary=False),)
    assert workload.jobs[1].roles[1] == RoleSize("board", 1, 0, spread=False, auxiliary=True)
    assert [bool(job.roles) for job in workload.jobs[2:]] == [False] * 3
    (note,) = workload.notes
    assert note.startswith("1 task with roles of different sizes requested CPUs or memory, which")


def test_a_packed_gang_that_no_nodes_hold_is_left_out(tmp_path: Path) -> None:
    lines = [
        history(),
        history(roles=[ROLE | {"replicas": 33}]),
        history(roles=[ROLE | {"gpus": 9}]),
    ]
    workload = read(tmp_path, "\n".join(lines), "week.jsonl")
    assert (len(workload.jobs), workload.skipped) == (1, 2)
    assert "a gang of 33 ranks of 1 GPU: group default has no room for it" in workload.notes[1]


# --- levels ---------------------------------------------------------------------------------


def test_numbers_keep_their_order_as_levels() -> None:
    notes: list[str] = []
    assert level_table([7], notes) == {7: Priority.NORMAL}
    assert list(level_table([50, 200, 100], notes).values()) == [
        Priority.BELOW_NORMAL,
        Priority.NORMAL,
        Priority.HIGH,
    ]
    assert notes == []
    many = list(level_table(range(20), notes).values())
    assert (many[0], many[-1], len(notes)) == (Priority.IDLE, Priority.EXTREME_HIGH, 1)
