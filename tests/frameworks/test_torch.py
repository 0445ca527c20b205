"""shiftwork.torch with real ranks: they leave together in mid-epoch and resume to the bit."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.local_gang import BIN, Gang, final, run_alone, torchrun, weights

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("frameworks_python")]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    """One replica; its ranks are torchrun's."""
    with Gang(tmp_path) as made:
        yield made


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


def run(folder: Path, text: str) -> str:
    """A program of one process; it must succeed."""
    return run_alone(folder, BIN / "python", program(folder, text))


# Two ranks: on the platform, in test_platform.py.
@pytest.mark.parametrize("ranks", [4])
def test_ddp_resumes_in_mid_epoch_to_the_bit(gang: Gang, tmp_path: Path, ranks: int) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run_alone(tmp_path, *torchrun(ranks, "torch_ddp.py", "--out", alone))
    steps = final(alone)["step"] // 4

    slow = torchrun(ranks, "torch_ddp.py", "--out", shared, "--step-seconds", 0.1)
    code, out = gang.preempt(*slow, after=2 * ranks)
    # torchrun has nothing to report: every rank has left with 0, after the acknowledgement.
    assert (code, "ChildFailedError" in out) == (0, False)
    left = re.findall(r"rank (\d) leaves in epoch \d at step (\d+)", out)
    assert sorted(left) == [(str(rank), str(gang.saved["step"])) for rank in range(ranks)]
    assert gang.saved["step"] % steps, "not in the middle of an epoch"

    code, out = gang.run(*torchrun(ranks, "torch_ddp.py", "--out", shared))
    assert code == 0
    assert f"step {gang.saved['step']}" in out
    assert final(shared) == final(alone)


def test_ddp_keeps_its_order_of_additions_with_find_unused_parameters(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import copy, torch, torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank = dist.get_rank()

        def end_the_same(**switches):
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.LayerNorm(512),
                nn.Linear(512, 512), nn.Linear(512, 3))
            adam = torch.optim.Adam(net.parameters())

            def train(model, steps):
                for step in steps:
                    source = torch.Generator().manual_seed(step * 100 + rank)
                    model(torch.randn(16, 64, generator=source)).square().mean().backward()
                    adam.step()
                    adam.zero_grad()

            model = DistributedDataParallel(net, **switches)
            train(model, range(4))
            held = copy.deepcopy((net.state_dict(), adam.state_dict()))
            train(model, range(4, 8))
            whole = copy.deepcopy(net.state_dict())
            net.load_state_dict(held[0])
            adam.load_state_dict(held[1])
            train(DistributedDataParallel(net, **switches), range(4, 8))
            return all(torch.equal(whole[name], value) for name, value in net.state_dict().items())

        print("without", end_the_same())
        assert end_the_same(find_unused_parameters=True)
        assert end_the_same(find_unused_parameters=True, gradient_as_bucket_view=True)
        """,
    )
    run_alone(tmp_path, *torchrun(4, script))


SHARDED = """
    import hashlib, sys, time
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.utils.data import TensorDataset
    import shiftwork.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def sharded():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 17), nn.ReLU(), nn.Dropout(0.1), nn.Linear(17, 3))
        for layer in (model[0], model[3], model):
            fully_shard(layer)
        return model

    def parts(model):
        adam = torch.optim.AdamW(model.parameters(), lr=0.01)
        rate = torch.optim.lr_scheduler.ExponentialLR(adam, 0.99)
        return dict(model=model, optimizer=adam, scheduler=rate)

    def train(parts, batch):
        parts["model"](batch).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"].zero_grad()
        parts["scheduler"].step()

    def digest(model, optimizer, **_):
        held = [*model.parameters()]
        held += [state[name] for state in optimizer.state.values() for name in sorted(state)]
        whole = [getattr(one, "full_tensor", lambda one=one: one)() for one in held]
        return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in whole)).hexdigest()
"""
SHARDED_LOOP = (
    SHARDED
    + """
    points = torch.randn(1600, 6, generator=torch.Generator().manual_seed(1))
    loader = shiftwork.torch.DataLoader(TensorDataset(points), batch_size=5, shuffle=True, seed=1)
    guard = shiftwork.torch.Preemption()
    made = parts(sharded())
    checkpoints = shiftwork.torch.Checkpoints("out", **made, loader=loader)
    step = checkpoints.load()
    print(f"rank {rank} from step {step}", flush=True)
    for epoch in range(loader.epoch, 2):
        for batch, in loader:
            train(made, batch)
            step += 1
            shiftwork.report(step=step)
            time.sleep(float(sys.argv[1]))
            if guard.should_leave(step):
                checkpoints.save(step)
                shiftwork.torch.exit_preempted()
    print(f"weights sha256 {digest(**made)}", flush=True)
    dist.destroy_process_group()
"""
)


# Two ranks: in the next test.
def test_a_sharded_model_resumes_in_mid_epoch_to_the_bit(gang: Gang, tmp_path: Path) -> None:
    ranks = 4
    script = program(tmp_path, SHARDED_LOOP)
    alone = run_alone(tmp_path, *torchrun(ranks, script, 0))
    code, _ = gang.preempt(*torchrun(ranks, script, 0.1), after=2 * ranks)
    assert (code, len(gang.server.checkpoints)) == (0, 1)
    step = gang.saved["step"]
    assert step % (1600 // 5 // ranks), "not in the middle of an epoch"
    code, out = gang.run(*torchrun(ranks, script, 0))
    assert code == 0
    assert sorted(re.findall(r"rank (\d) from step (\d+)", out)) == [
        (str(rank), str(step)) for rank in range(ranks)
    ]
    assert weights(out) == weights(alone)


def test_shards_are_spread_over_another_number_of_ranks_and_none_may_change(
    tmp_path: Path,
) -> None:
    script = program(
        tmp_path,
        SHARDED
        + """
    import pathlib

    Checkpoints = shiftwork.torch.Checkpoints

    def problem(call):
        try:
            call()
        except (TypeError, ValueError) as error:
            return str(error)
        raise AssertionError("not refused")

    def batch(number):
        return torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * number + rank))

    def resumed(source, model, **options):
        made = parts(model)
        assert Checkpoints("out", **made).load(source, **options) == 3
        return made

    source = pathlib.Path("saved").resolve()
    if dist.get_world_size() == 2:
        made = parts(sharded())
        for number in range(3):
            train(made, batch(number))
        message = problem(lambda: Checkpoints("out", optimizer=made["optimizer"]).save(3))
        wanted = "optimizer: its parameters are sharded; add their model to the parts"
        assert message == wanted, message
        before, where = digest(**made), Checkpoints("out", **made).save(3)
        train(made, batch(3))
        again = resumed(where, sharded())
        assert digest(**again) == before
        train(again, batch(3))
        assert digest(**again) == digest(**made)
        # It cannot be made without a GPU.
        older = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
        nn.Module.__init__(older)
        message = problem(lambda: Checkpoints("out", model=nn.Sequential(older)))
        assert message == "model is a FullyShardedDataParallel; shard it with fully_shard", message
        # One byte of a file that the other rank checks.
        path = pathlib.Path(where, "sharded", "__1_0.distcp")
        kept = path.read_bytes()
        dist.barrier()
        if rank == 0:
            path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        dist.barrier()
        message = problem(lambda: resumed(where, sharded()))
        assert "__1_0.distcp is not what was saved" in message, message
        dist.barrier()
        if rank == 0:
            path.write_bytes(kept)
            pathlib.Path(where).rename(source)
            pathlib.Path("digest").write_text(before)
        dist.barrier()
    else:
        message = problem(lambda: resumed(source, sharded()))
        assert "was saved by 2 ranks, this gang has" in message, message
        assert "any_ranks=True" in message, message
        model = sharded() if dist.get_world_size() == 3 else nn.Sequential(
            nn.Linear(6, 17), nn.ReLU(), nn.Dropout(0.1), nn.Linear(17, 3))
        made = resumed(source, model, any_ranks=True)
        assert digest(**made) == pathlib.Path("digest").read_text()
        assert made["scheduler"].last_epoch == 3
    # No rank ends while another still talks to it.
    dist.barrier()
    dist.destroy_process_group()
""",
    )
    for ranks in (2, 3, 1):
        run_alone(tmp_path, *torchrun(ranks, script))


ONE_HEARS = """
    import os, random, signal, time
    import torch.distributed as dist
    import shiftwork.torch

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    guard = shiftwork.torch.Preemption()
    for step in range(1, 4000):
        time.sleep(random.random() * 0.01)  # ranks are not at the same step
        if step == 100 and rank == {rank}:
            os.kill(os.getpid(), signal.SIGTERM)
        if guard.should_leave(step):
            shiftwork.torch.acknowledge(step, "file:///c")
            print(f"rank {{rank}} leaves at {{step}}", flush=True)
            shiftwork.torch.exit_preempted()
"""


@pytest.mark.parametrize("rank", [0, 3])
def test_all_ranks_leave_at_the_same_step_when_one_is_asked_to_leave(
    gang: Gang, tmp_path: Path, rank: int
) -> None:
    code, out = gang.run(*torchrun(4, program(tmp_path, ONE_HEARS.format(rank=rank))))
    left = re.findall(r"rank (\d) leaves at (\d+)", out)
    assert len(left) == 4
    assert len({step for _, step in left}) == 1
    # SIGTERM is not the platform's request: success would be taken for the end of the training.
    assert code != 0
    assert "exitcode  : 75" in out


def test_ranks_that_a_stuck_one_keeps_waiting_acknowledge_nothing(
    gang: Gang, tmp_path: Path
) -> None:
    script = program(
        tmp_path,
        """
        import os, threading, time
        import torch, torch.distributed as dist
        import shiftwork, shiftwork.torch

        dist.init_process_group("gloo")
        shiftwork.torch.WARN_AFTER_SECONDS = 1.0
        guard = shiftwork.torch.Preemption()
        checkpoints = shiftwork.torch.Checkpoints("out", model=torch.nn.Linear(1, 1))
        # In place of the platform's deadline.
        threading.Thread(target=lambda: (time.sleep(15), os._exit(9)), daemon=True).start()
        for step in range(1, 4000):
            time.sleep(0.02)
            shiftwork.report(step=step)
            if step == 20 and dist.get_rank() == 1:
                time.sleep(3600)
            if step == 30:
                while not shiftwork.should_preempt():
                    time.sleep(0.01)
            if guard.should_leave(step):
                checkpoints.save(step)
        """,
    )
    code, out = gang.preempt(*torchrun(2, script), after=20)
    assert code != 0
    assert "shiftwork: rank 0 waits for rank 1 to begin the checkpoint" in out
    assert gang.server.checkpoints == []
    assert not list(tmp_path.glob("out/*/manifest.json"))


def test_a_rank_that_has_finished_lets_the_others_finish(gang: Gang, tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
        import time
        import torch.distributed as dist
        import shiftwork, shiftwork.torch

        dist.init_process_group("gloo")
        guard = shiftwork.torch.Preemption()
        assert not guard.should_leave(1)
        shiftwork.report(step=1)
        if dist.get_rank() == 0:
            while not shiftwork.should_preempt():
                time.sleep(0.01)
            time.sleep(1)
            assert not guard.should_leave(2)
            print("finished", flush=True)
        """,
    )
    # Both ranks have asked whether to leave.
    code, out = gang.preempt(*torchrun(2, script), after=2)
    assert (code, "finished" in out) == (0, True)


def test_checkpoints_are_pruned_but_for_the_last_and_never_overwritten(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import json, os, pathlib, torch, numpy, random
        import shiftwork.torch

        folder = pathlib.Path("out")
        model = torch.nn.Linear(3, 3)
        adam = torch.optim.Adam(model.parameters())
        scaler = torch.amp.GradScaler("cpu")
        parts = dict(model=model, optimizer=adam, scaler=scaler)
        checkpoints = shiftwork.torch.Checkpoints(folder, **parts)
        assert checkpoints.load() == 0
        for step in (1, 2, 3, 3):
            where = checkpoints.save(step)
        assert sorted(os.listdir(folder)) == [
            "ta-attempt-0001-step-000000000003", "ta-attempt-0001-step-000000000003-2"]
        drawn = torch.rand(2).tolist(), random.random(), numpy.random.rand()
        model.weight.data.zero_()
        assert checkpoints.load(where) == 3
        assert bool(model.weight.any())
        assert drawn == (torch.rand(2).tolist(), random.random(), numpy.random.rand())

        def refused(change):
            files = {path: path.read_bytes() for path in pathlib.Path(where).iterdir()}
            change()
            try:
                checkpoints.load(where)
            except ValueError as error:
                for path, data in files.items():
                    path.write_bytes(data)
                return str(error)
            raise AssertionError("not refused")

        shared = pathlib.Path(where, "shared.pt")
        message = refused(lambda: shared.write_bytes(shared.read_bytes()[:-1] + b"x"))
        assert "is not what was saved" in message, message
        manifest = pathlib.Path(where, "manifest.json")
        held = json.loads(manifest.read_text())
        message = refused(lambda: manifest.write_text(json.dumps({**held, "ranks": 2})))
        assert "was saved by 2 ranks, this gang has 1: start it with as many" in message, message
        other = shiftwork.torch.Checkpoints(folder, modell=model)
        try:
            other.load(where)
        except ValueError as error:
            assert "holds no modell: it has model, optimizer, rng, scaler" in str(error)
        """,
    )


def test_invalid_steps_and_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import os, numpy, torch
        import shiftwork.torch

        def problem(call):
            try:
                call()
            except (TypeError, ValueError) as error:
                return f"{type(error).__name__}: {error}"
            raise AssertionError("not refused")

        model = torch.nn.Linear(3, 3)
        for name in shiftwork.torch.RESERVED:
            message = problem(lambda: shiftwork.torch.Checkpoints("out", **{name: model}))
            assert message.startswith(f"ValueError: no part may have the name {name}"), message
        assert shiftwork.torch.RESERVED == {"rng"}
        checkpoints = shiftwork.torch.Checkpoints("out", model=model)
        message = [problem(lambda: checkpoints.save(step)) for step in (-1, "5", 5.0, None)]
        assert message == [
            "ValueError: step must be 0 or more, not -1",
            "TypeError: step must be a whole number, not '5'",
            "TypeError: step must be a whole number, not 5.0",
            "TypeError: step must be a whole number, not None",
        ], message
        assert not os.path.exists("out")
        where = checkpoints.save(numpy.int64(5))
        assert checkpoints.load(where) == 5
        """,
    )


def test_ranks_at_different_steps_save_nothing(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        SHARDED
        + """
    import os

    def problem(call):
        try:
            call()
        except (TypeError, ValueError) as error:
            return str(error)
        raise AssertionError("not refused")

    made = parts(sharded())
    checkpoints = shiftwork.torch.Checkpoints("out", **made)
    message = problem(lambda: checkpoints.save(1 + rank))
    assert message.startswith("rank 0 saves step 1, but rank 1 saves step 2"), message
    message = problem(lambda: checkpoints.save(1 if rank else "1"))
    assert message.endswith("step must be a whole number, not '1'"), message
    # fully_shard has given the model other parameters than this one has.
    layer = nn.Linear(6, 3)
    adam = torch.optim.AdamW(layer.parameters())
    fully_shard(layer)
    before = shiftwork.torch.Checkpoints("out", model=layer, optimizer=adam)
    message = problem(lambda: before.save(1))
    assert message.startswith("optimizer: its parameters are those of no model"), message
    assert not os.path.exists("out")
    checkpoints.save(3)
    dist.destroy_process_group()
""",
    )
    run_alone(tmp_path, *torchrun(2, script))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_in_mid_epoch_with_the_same_batches(tmp_path: Path, workers: int) -> None:
    run(
        tmp_path,
        f"""
        import torch, shiftwork.torch
        from torch.utils.data import TensorDataset

        def loader():
            return shiftwork.torch.DataLoader(
                TensorDataset(torch.arange(103)), 10, shuffle=True, seed=5, num_workers={workers})

        whole = loader()
        torch.manual_seed(0)
        epochs = [[batch[0].tolist() for batch in whole] for _ in range(3)]
        assert torch.initial_seed() == 0 and torch.rand(1) == torch.manual_seed(0) and 0 or True
        assert epochs[0] != epochs[1] and sorted(sum(epochs[1], [])) == list(range(103))
        first = loader()
        seen = [batch[0].tolist() for batch in first]
        for number, batch in enumerate(first):
            if number == 3:
                state = first.state_dict()
                break
        again = loader()
        again.load_state_dict(state)
        assert again.epoch == 1 and len(again) == 11
        again.set_epoch = again.sampler.set_epoch
        again.set_epoch(1)  # as Lightning does before each epoch
        assert [batch[0].tolist() for batch in again] == epochs[1][4:]
        assert [batch[0].tolist() for batch in again] == epochs[2]
        # At the end of an epoch: nothing is left of it, and the next one is whole.
        ended = loader()
        ended.load_state_dict({{"epoch": 1, "done": 11}})
        assert [len(list(ended)), [batch[0].tolist() for batch in ended]] == [0, epochs[2]]
        other = shiftwork.torch.DataLoader
        for name, another in (
            ("batch_size", other(range(103), 5, True, seed=5)),
            ("shuffle", other(range(103), 10, seed=5)),
            ("seed", other(range(103), 10, True, seed=6)),
            ("drop_last", other(range(103), 10, True, seed=5, drop_last=True)),
            ("length", other(range(104), 10, True, seed=5)),
        ):
            try:
                another.load_state_dict(state)
            except ValueError as error:
                assert str(error).startswith(name + " of the DataLoader is "), error
            else:
                raise AssertionError(name)
        try:
            loader().load_state_dict({{**state, "ranks": 2}})
        except ValueError as error:
            assert "ranks of the DataLoader is 1, but was 2 when it was saved" in str(error)
        else:
            raise AssertionError("ranks")
        """,
    )


def test_all_of_a_checkpoint_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import os, pathlib, torch, shiftwork.torch

        synced = []
        fsync = os.fsync
        def record(handle):
            synced.append(os.readlink(f"/proc/self/fd/{handle}").replace(".writing", ""))
            fsync(handle)
        os.fsync = record
        shiftwork.checkpoint_saved = lambda *_: synced.append("acknowledged")
        where = shiftwork.torch.Checkpoints("above/out", model=torch.nn.Linear(3, 3)).save(1)
        above = [str(path) for path in list(pathlib.Path(where).parents)[2::-1]]
        files = [os.path.join(where, name) for name in ("rank-0.pt", "shared.pt", "manifest.json")]
        assert sorted(files) == sorted(map(str, pathlib.Path(where).iterdir()))
        assert synced == [
            *above, files[0], where, files[1], where, files[2], where, "acknowledged"], synced
        """,
    )


def test_a_new_process_group_receives_no_answers_of_the_one_before(
    frameworks_python: Path, tmp_path: Path
) -> None:
    """Both have the launcher's store. PyTorch's own keys in it are left out: gloo may connect to
    an address of the group before, whatever this SDK does."""
    script = program(
        tmp_path,
        """
        from types import SimpleNamespace
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d
        import shiftwork.torch

        shared = dist.HashStore()
        c10d._get_default_store = lambda: shared
        dist.is_initialized, dist.get_rank, dist.get_world_size = lambda: True, lambda: 0, lambda: 2
        dist.group = SimpleNamespace(WORLD=object())
        first = shiftwork.torch._ranks()
        first.store.set("gather/0", "old")
        assert shiftwork.torch._ranks() is first
        dist.group.WORLD = object()
        second = shiftwork.torch._ranks()
        assert second is not first
        assert not second.store.check(["gather/0"])
        second.store.set("gather/0", "new")
        assert first.store.get("gather/0") == b"old"
        """,
    )
    done = subprocess.run([frameworks_python, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
