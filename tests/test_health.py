"""HealthMonitor on plain arrays: it names the tensor at fault, and leaves the others alone."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import boost_ext
from boost_ext import ops, run_log
from boost_ext.health import Health, HealthMonitor, Statistics, table
from dtypes import FLOATS, normal

SHAPES = {f"layer{i}.{kind}": shape for i in range(6) for kind, shape in (("weight", (40, 30 + i)), ("bias", (40,)))}


def tensors(rng: np.random.Generator, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {name: normal(rng, shape, dtype) for name, shape in SHAPES.items()}


def only(health: Health | None) -> Health:
    assert health is not None
    return health


def test_each_of_100_injected_faults_is_named():
    """A bad element of a gradient, a weight or an update, anywhere, in a step of a run that is fine otherwise."""
    named = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        dtype = list(FLOATS.values())[seed % 3]
        role, name = rng.choice(["gradient", "weight", "update"]), str(rng.choice(list(SHAPES)))
        bad, step = rng.choice([np.inf, -np.inf, np.nan]), int(rng.integers(1, 6))
        place = int(rng.integers(math.prod(SHAPES[name])))
        monitor = HealthMonitor()
        for number in range(1, 6):
            seen = {of: tensors(rng, dtype) for of in ("gradient", "weight", "update")}
            if number == step:
                seen[str(role)][name].reshape(-1)[place] = bad
            health = only(
                monitor.check(
                    number, gradients=seen["gradient"], weights=seen["weight"], updates=seen["update"], loss=1.0
                )
            )
            assert (health.fault is not None) is (number == step)
        fault = monitor.first_fault
        assert fault is not None
        found = fault.step, fault.of, fault.name, fault.first_index, fault.inf, fault.nan
        named += found == (step, role, name, place, int(math.isinf(bad)), int(math.isnan(bad)))
    assert named == 100


def test_the_rows_are_the_statistics(rng):
    gradients, weights = tensors(rng), tensors(rng)
    gradients["layer1.bias"][:10] = 0
    health = only(HealthMonitor().check(1, gradients=gradients, weights=weights, scale=4.0))
    assert [(t.of, t.name) for t in health.tensors] == [
        *(("gradient", n) for n in SHAPES),
        *(("weight", n) for n in SHAPES),
    ]
    for t in health.tensors:
        array = (gradients[t.name] / 4 if t.of == "gradient" else weights[t.name]).astype(np.float64)
        assert (t.elements, t.inf, t.nan, t.first_index) == (array.size, 0, 0, None)
        assert t.zeros == (array == 0).sum()
        assert t.largest == abs(array).max()
        assert t.norm == pytest.approx(np.linalg.norm(array), rel=1e-12)


def test_the_first_cause_among_several(rng):
    def seen(**given: Any) -> Any:
        return only(HealthMonitor().check(1, **given)).fault

    gradients, weights = tensors(rng), tensors(rng)
    gradients["layer1.weight"][0, 0] = gradients["layer4.weight"][0, 0] = np.nan
    # The backward pass reaches the last layer first.
    assert seen(gradients=gradients, loss=0.5).name == "layer4.weight"
    assert str(seen(gradients=gradients, loss=np.nan)) == "step 1: the loss is nan"
    weights["layer2.bias"][3] = weights["layer3.bias"][3] = np.inf
    fault = seen(gradients=gradients, weights=weights, loss=math.inf)
    assert str(fault) == "step 1: layer2.bias holds 1 inf, 0 nan, first at 3"


def test_a_weight_that_its_gradient_spoiled_is_not_the_cause(rng):
    gradients, weights = tensors(rng), tensors(rng)
    for name in ("layer2.bias", "layer3.bias"):
        gradients[name][1] = weights[name][1] = np.inf  # as after a step of SGD
    for loss in (1.0, None):
        fault = only(HealthMonitor().check(1, gradients=gradients, weights=weights, loss=loss)).fault
        assert (fault.of, fault.name) == ("gradient", "layer3.bias")
    for gradient in gradients.values():  # as after a forward pass with this weight
        gradient[...] = np.nan
    for loss in (np.nan, None):
        fault = only(HealthMonitor().check(1, gradients=gradients, weights=weights, loss=loss)).fault
        assert (fault.of, fault.name) == ("weight", "layer2.bias")


def test_a_rank_is_named(rng):
    gradients = {"w": np.float32([1, np.inf])}
    health = only(HealthMonitor(rank=3).check(7, gradients=gradients))
    assert health.line() == "step 7, rank 3: the gradient of w holds 1 inf, 0 nan, first at 1"


def test_dead_and_exploding_layers(rng):
    monitor = HealthMonitor(exploding=50)
    for step in range(1, 9):
        gradients = {"fine": normal(rng, 100), "dead": np.zeros(9, np.float32), "wild": normal(rng, 100)}
        if step == 8:
            gradients["wild"] *= np.float32(100)
        health = only(monitor.check(step, gradients=gradients))
        assert health.dead == ("dead",)
        assert health.exploding == (("wild",) if step == 8 else ())
    assert health.line() == "step 8  3 tensors finite  dead: dead  exploding: wild"


def test_a_slow_explosion_is_found(rng):
    monitor, found = HealthMonitor(), []
    for step in range(1, 31):
        health = only(monitor.check(step, gradients={"w": np.full(9, 2.0**step, np.float32)}))
        found.append(bool(health.exploding))
    # 2^s is more than 100 times 2^(s / 2), the mean of those before it, from step 14 on.
    assert found == [step >= 14 for step in range(1, 31)]


def test_dead_from_a_share_on():
    gradients = {"half": np.float32([0, 0, 1, 1]), "most": np.float32([0, 0, 0, 1])}
    assert only(HealthMonitor(dead=0.75).check(1, gradients=gradients)).dead == ("most",)


def ratios(health: Health | None) -> dict[str, float | None]:
    return {t.name: t.update_ratio for t in only(health).tensors if t.of == "weight"}


def test_update_ratios_of_whole_weights(rng):
    """Weights of up to `sample` elements are kept as they are."""
    monitor, weights = HealthMonitor(sample=10_000), tensors(rng)
    assert set(ratios(monitor.check(1, weights=weights)).values()) == {None}
    before = {n: w.copy() for n, w in weights.items()}
    for w in weights.values():
        w -= np.float32(0.01) * normal(rng, w.shape)
    for name, ratio in ratios(monitor.check(2, weights=weights)).items():
        change = weights[name].astype(np.float64) - before[name]
        assert ratio == pytest.approx(np.linalg.norm(change) / np.linalg.norm(before[name].astype(np.float64)))


def test_update_ratios_of_samples_are_near(rng):
    weights = {"w": normal(rng, (512, 512))}
    monitor = HealthMonitor(every=10, sample=1024)
    for step in range(1, 11):
        health = monitor.check(step, weights=weights)
        if step < 10:
            assert health is None
            weights["w"] += np.float32(0.001) * normal(rng, (512, 512))
    assert ratios(health)["w"] == pytest.approx(0.001, rel=0.1)  # of the last step alone


def test_update_ratios_where_tensors_come_and_go(rng):
    monitor = HealthMonitor(sample=10)
    shared = normal(rng, 40)
    monitor.check(1, weights={"old": normal(rng, 30), "shared": shared, "none": np.ones(0, np.float32)})
    seen = ratios(monitor.check(2, weights={"new": normal(rng, 30), "shared": shared * 2, "old": normal(rng, 7)}))
    assert seen == {"new": None, "shared": 1, "old": None}
    assert set(ratios(monitor.check(3, weights={"other": shared})).values()) == {None}


def test_given_updates_are_taken(rng):
    weights = {"w": np.float32([3, 4]), "new": np.zeros(2, np.float32)}
    updates = {"w": np.float32([0.5, 0]), "new": np.ones(2, np.float32)}
    assert ratios(HealthMonitor().check(1, weights=weights, updates=updates)) == {"w": 0.1, "new": None}


def test_steps_that_are_looked_at(rng):
    monitor = HealthMonitor(every=4)
    gradients = tensors(rng)
    looked = [bool(monitor.check(step, gradients=gradients, loss=1.0)) for step in range(1, 9)]
    assert looked == [step % 4 == 0 for step in range(1, 9)]
    assert monitor.check(9, gradients=gradients, loss=float("nan"))
    assert monitor.check(10, gradients=gradients, overflow=True)


def test_a_step_with_a_bad_gradient_is_looked_at(rng):
    """Whatever `every` is; of the gradients that `names` leaves, and not with watch=False."""
    gradients = tensors(rng)
    gradients["layer2.bias"][7] = np.nan
    rows = Statistics(
        list(gradients), [g.size for g in gradients.values()], ops.tensor_statistics([*gradients.values()])
    )
    for given in (gradients, rows):
        fault = only(HealthMonitor(every=100).check(3, gradients=given, weights=tensors(rng))).fault
        assert str(fault) == "step 3: the gradient of layer2.bias holds 0 inf, 1 nan, first at 7"
        assert HealthMonitor(every=100, watch=False).check(3, gradients=given) is None
        assert HealthMonitor(every=100, names="layer1.*").check(3, gradients=given) is None
        assert HealthMonitor(every=100, names="head").check(3, gradients=given) is None
    wide = {"w": np.ones(3, np.float32), "v": np.ones(3)}
    with pytest.raises(TypeError, match=r"^HealthMonitor: gradients\['v'\] must be float32, float16 or bfloat16, got"):
        HealthMonitor(every=100).check(3, gradients=wide)


def test_names_are_filtered(rng):
    monitor = HealthMonitor(names=["layer1.*", "*.bias"])
    health = only(monitor.check(1, gradients={**tensors(rng), "none.bias": None}))
    assert [t.name for t in health.tensors] == [n for n in SHAPES if n.startswith("layer1.") or n.endswith(".bias")]


def test_names_that_match_nothing_are_refused(rng):
    """Once, since later a step may have none of them."""
    text = r"^HealthMonitor: names must match a tensor, got 'layer9\.\*', 'head', and tensors such as 'layer0\.weight'$"
    for given in ({"gradients": tensors(rng)}, {"weights": tensors(rng)}):
        with pytest.raises(ValueError, match=text):
            HealthMonitor(names=["layer9.*", "head"], every=2).check(2, **given)
    monitor = HealthMonitor(names="layer1.*")
    assert only(monitor.check(1, weights=tensors(rng))).tensors
    assert only(monitor.check(2, weights={"layer0.bias": np.ones(3, np.float32)})).tensors == ()
    assert only(HealthMonitor(names="head").check(1)).tensors == ()


def test_rows_from_elsewhere(rng):
    gradients = tensors(rng)
    rows = ops.tensor_statistics(list(gradients.values()))
    given = Statistics(list(gradients), [g.size for g in gradients.values()], rows)
    assert HealthMonitor().check(1, gradients=given) == HealthMonitor().check(1, gradients=gradients)


def test_the_log_is_a_run_log(rng, tmp_path):
    path = tmp_path / "run-{rank}.jsonl"
    gradients = {"w": np.float32([1, np.nan])}
    for _ in range(2):
        with HealthMonitor(path, rank=1, every=2, watch=False) as monitor:
            for step in range(1, 5):
                monitor.check(step, gradients=gradients)
    written = tmp_path / "run-1.jsonl"
    header, *steps, end = run_log.iterate(written)
    assert (header.kind, header.rank, header.every, end.error) == ("header", 1, 2, None)
    assert [s.step for s in steps] == [2, 4]
    assert steps[-1] == monitor.last
    assert (tmp_path / "run-1.1.jsonl").exists()
    assert json.loads(written.read_text().splitlines()[1])["fault"]["name"] == "w"


def test_an_error_ends_the_log(tmp_path):
    path = tmp_path / "run.jsonl"

    def train() -> None:
        with HealthMonitor(path) as monitor:
            monitor.check(1, gradients={"w": np.ones(3, np.float32)})
            raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        train()
    assert list(run_log.iterate(path))[-1].error == "RuntimeError: no data"


def test_writers_get_the_records():
    class Kept:
        def __init__(self) -> None:
            self.records: list[Any] = []

        def write(self, record: Any) -> None:
            self.records.append(record)

        def close(self) -> None:
            self.records.append("closed")

    kept = Kept()
    with HealthMonitor(writers=[kept]) as monitor:
        weights = {"w": np.float32([3, 4])}
        monitor.check(1, gradients={"w": np.float32([0, 2])}, weights=weights, updates={"w": np.float32([1, 0])})
    header, health, _, closed = kept.records
    assert header.kind == "header"
    assert closed == "closed"
    assert health.scalars() == {
        "health/faults": 0,
        "health/gradient_norm/w": 2,
        "health/zero_share/w": 0.5,
        "health/weight_norm/w": 5,
        "health/update_ratio/w": 0.2,
        "health/update_norm/w": 1,
    }


def test_the_table_reads_well(rng):
    gradients = {"fine": np.float32([3, 4]), "bad": np.float32([0, np.inf]), "dead": np.zeros(2, np.float32)}
    health = only(HealthMonitor().check(5, gradients=gradients, weights={"fine": np.float32([0, 2])}))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(health, rows=2))
    text = console.export_text()
    assert "step 5: the gradient of bad holds 1 inf, 0 nan, first at 1  dead: dead" in text
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert "faulty" in rows[0]
    assert rows[1].rstrip(" │").endswith("dead")
    assert "and 1 more" in rows[2]


def test_refusals(rng):
    for arguments, error, text in (
        ({"every": 0}, ValueError, "every must be at least 1, got 0"),
        ({"every": 1.5}, TypeError, "every must be an int, got float"),
        ({"sample": -1}, ValueError, "sample must be at least 0, got -1"),
        ({"names": [1]}, TypeError, "names must hold strings, got int"),
        ({"exploding": 1}, ValueError, "exploding must be > 1, got 1"),
        ({"dead": 0}, ValueError, "dead must be > 0 and at most 1, got 0"),
        ({"path": 3}, TypeError, "path must be a str or a Path, got int"),
        ({"rank": -1}, ValueError, "rank must be at least 0, got -1"),
    ):
        with pytest.raises(error, match=f"^HealthMonitor: {text}$"):
            HealthMonitor(**arguments)
    with pytest.raises(TypeError, match=r"^HealthMonitor: step must be an int, got float$"):
        HealthMonitor().check(1.0)
    wide = {"w": np.ones(3, np.float32), "v": np.ones(3)}
    text = r"^HealthMonitor: gradients\['v'\] must be float32, float16 or bfloat16, got float64$"
    with pytest.raises(TypeError, match=text):
        HealthMonitor().check(1, gradients=wide)


def test_it_is_a_public_module():
    assert boost_ext.health.HealthMonitor is HealthMonitor
