"""boost_ext.torch in trainings: compiled, in parallel, on the handwritten digits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from boost_ext import torch as boost  # noqa: E402


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def batch(seed: int, size: int = 8) -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(size, 16, generator=made), torch.randint(4, (size,), generator=made)


def trained(net: Any, optimizer: Any, steps: int, step: Any = None) -> list[Any]:
    def one(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    for i in range(steps):
        (step or (lambda f: f))(one)(*batch(i))
    return [p.detach() for p in net.parameters()]


def test_needs_no_mindspore():
    script = "import sys; sys.modules['mindspore'] = None\nimport boost_ext; print(boost_ext.torch.AdamW.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout == "AdamW\n", done.stderr


OLDER = """
import sys
import torch

del torch.Tensor.__dlpack_c_exchange_api__
sys.path.insert(0, sys.argv[1])
from test_torch_training import boost, network, trained

net = network()
torch.save(trained(net, boost.AdamW(net.parameters(), lr=0.01), 5), sys.argv[2])
"""


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this PyTorch is an older one")
def test_an_older_pytorch(tmp_path: Path):
    """Before 2.10 it handed its tensors out in Python alone, and no parameters."""
    net, path = network(), tmp_path / "weights"
    expected = trained(net, boost.AdamW(net.parameters(), lr=0.01), 5)
    script = [sys.executable, "-c", OLDER, str(Path(__file__).parent), str(path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(map(torch.equal, torch.load(path), expected))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_goes_where_a_plain_one_does(backend):
    plain, compiled = network(), network()
    expected = trained(plain, boost.AdamW(plain.parameters(), lr=0.01), 5)
    compiling = {"step": lambda f: torch.compile(f, backend=backend)}
    got = trained(compiled, boost.AdamW(compiled.parameters(), lr=0.01), 5, **compiling)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


RANK = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from boost_ext import torch as boost
sys.path.insert(0, sys.argv[1])
from test_torch_training import batch, network, trained

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
mean, whole = network(), network()
optimizer = boost.AdamW8bit(mean.parameters(), lr=0.01)
ddp = DistributedDataParallel(mean)
reference = boost.AdamW8bit(whole.parameters(), lr=0.01)
for i in range(5):
    x, y = batch(i)
    for net, chosen, part in ((ddp, optimizer, slice(4 * rank, 4 * rank + 4)), (whole, reference, slice(8))):
        chosen.zero_grad()
        torch.nn.functional.cross_entropy(net(x[part]), y[part]).backward()
        chosen.step()
for p, q in zip(mean.parameters(), whole.parameters()):
    torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)

mesh = init_device_mesh("cpu", (2,))
values, grad = torch.randn(256, 33), torch.randn(256, 33)  # the same on both ranks
dist.broadcast(values, 0)
dist.broadcast(grad, 0)
spread = torch.nn.Parameter(distribute_tensor(values, mesh, [Shard(0)]))
alone = torch.nn.Parameter(values.chunk(2)[rank].clone())  # what of it is here
pair = [boost.AdamW([p], lr=0.01, state_dtype="float8") for p in (spread, alone)]
for _ in range(3):
    spread.grad, alone.grad = distribute_tensor(grad, mesh, [Shard(0)]), grad.chunk(2)[rank].clone()
    for chosen in pair:
        chosen.step()
state = pair[0].state[spread]["exp_avg"]
assert isinstance(state, DTensor) and state.to_local().shape == (128, 33), state
assert torch.equal(spread.to_local(), alone)
assert torch.equal(state.to_local(), pair[1].state[alone]["exp_avg"])
wide = boost.AdamW([spread], lr=0.01)
wide.load_state_dict(pair[0].state_dict())
assert isinstance(wide.state[spread]["exp_avg"], DTensor)
assert wide.state[spread]["exp_avg"].to_local().dtype == torch.float32
again = boost.AdamW([spread], lr=0.01, state_dtype="float8")
again.load_state_dict(pair[0].state_dict())
assert torch.equal(again.state[spread]["exp_avg"].to_local(), state.to_local())
halves = [torch.nn.Parameter(p.detach().bfloat16()) for p in (spread, alone)]
pair = [boost.AdamW([p], lr=0.01, master="split16") for p in halves]
for _ in range(3):
    halves[0].grad, halves[1].grad = (p.grad.bfloat16() for p in (spread, alone))
    for chosen in pair:
        chosen.step()
masters = [chosen.state_dict()["state"][0]["master"] for chosen in pair]
assert isinstance(masters[0], DTensor) and masters[0].dtype == torch.float32
assert torch.equal(masters[0].to_local(), masters[1]) and not torch.equal(masters[1], halves[1].float())
wide = boost.AdamW([halves[0]], lr=0.01, master="split8")
wide.load_state_dict(pair[0].state_dict())
assert wide.state[halves[0]]["master"].to_local().dtype == torch.int8
for placed in ([Replicate()], [Shard(0)]):  # torch sums the gradient first, or takes the part that is here
    results = []
    for module in (boost, torch.optim):
        weight = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, placed))
        for grads in ([Partial()], [Replicate()]):
            value = torch.full((4,), rank + 1.0) if grads == [Partial()] else torch.arange(4.0)
            weight.grad = DTensor.from_local(value, mesh, grads)
            module.SGD([weight], lr=0.1).step()
        results.append(weight.to_local())
    assert torch.equal(*results), results
for refused in (boost.Lamb, boost.Lars, boost.Adafactor, boost.Muon, boost.Apollo, boost.GaLore):
    try:
        refused([spread])
        raise SystemExit("not refused")
    except TypeError as error:
        assert "got DTensor" in str(error), error
dist.destroy_process_group()
print("rank", rank, "done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_two_processes(tmp_path: Path):
    """DistributedDataParallel, and DTensors by their local part."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 10000), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(Path(__file__).parent)],
            env={**os.environ, **address, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for rank, text in enumerate(said):
        assert f"rank {rank} done" in text, text


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("AdamW", {"lr": 2e-3, "weight_decay": 0.01}),
        ("AdamW8bit", {"lr": 2e-3, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("Lamb", {"lr": 0.02}),
        ("Lars", {"lr": 0.5, "trust_coefficient": 0.02}),
        ("Adafactor", {"lr": 0.02}),
        ("Lion", {"lr": 2e-3, "weight_decay": 0.1, "cautious": True}),
        ("NAdamW8bit", {"lr": 2e-3}),
        ("AdEMAMix", {"lr": 2e-3, "alpha_steps": 224, "beta3_steps": 224}),
        ("Adan", {"lr": 5e-3, "weight_decay": 0.02}),
        ("ScheduleFreeAdamW", {"lr": 5e-3, "warmup_steps": 20}),
        ("ScheduleFreeSGD", {"lr": 1.0}),
        ("Muon", {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"}),
        ("Apollo", {"lr": 2e-3, "weight_decay": 0.01, "scale": 8.0}),
        ("GaLore", {"lr": 5e-3, "weight_decay": 0.01, "rank": 16, "scale": 1.0}),
    ],
)
def test_the_digits_are_learnt(name, settings):
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    mixed = torch.randperm(len(x))
    x, y = x[mixed], y[mixed]
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = getattr(boost, name)(net.parameters(), **settings)
    for _ in range(8):
        for rows in torch.randperm(1400).split(50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            boost.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
    if name.startswith("ScheduleFree"):
        optimizer.eval()
    accuracy = (net(x[1400:]).argmax(1) == y[1400:]).float().mean()
    assert accuracy > 0.9
