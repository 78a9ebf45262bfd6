"""Arrays of JAX: ops read them and write none, HealthMonitor watches a training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")
jnp: Any = pytest.importorskip("jax.numpy")

from boost_ext import ops  # noqa: E402
from boost_ext.health import HealthMonitor  # noqa: E402


def test_ops_read_arrays_and_write_none() -> None:
    x = jnp.arange(6.0)
    with pytest.raises(ValueError, match="must be writable, got a JAX array, which is immutable"):
        ops.unscale_and_check(x, 0.5)
    assert x.tolist() == list(range(6))
    total = np.zeros(6, np.float32)
    ops.accumulate(total, x, 2.0)
    assert total.tolist() == [0, 2, 4, 6, 8, 10]


def loss(weights: dict[str, Any], x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ weights["hidden"]) @ weights["head"] - y) ** 2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_a_training_is_watched(dtype: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        "hidden": jax.random.normal(keys[0], (8, 16), dtype),
        "head": jax.random.normal(keys[1], (16, 3), dtype),
    }
    x, y = jax.random.normal(keys[2], (32, 8), dtype), jax.random.normal(keys[3], (32, 3), dtype)
    step, monitor = jax.jit(jax.value_and_grad(loss)), HealthMonitor(sample=10_000)
    for t in range(1, 6):
        value, gradients = step(weights, x, y)
        if t == 4:
            gradients["head"] = gradients["head"].at[5, 1].set(jnp.inf)
        before = weights
        if t < 4:
            weights = {name: w - jnp.asarray(0.1, dtype) * gradients[name] for name, w in weights.items()}
        health = monitor.check(t, gradients=gradients, weights=weights, loss=float(value))
        assert health is not None
        rows = {(row.of, row.name): row for row in health.tensors}
        for name in weights:
            exact = np.asarray(gradients[name], np.float64)
            if np.isfinite(exact).all():
                assert rows["gradient", name].norm == pytest.approx(np.linalg.norm(exact), rel=1e-6)
            old, new = (np.asarray(w[name], np.float64) for w in (before, weights))
            if t > 1:
                ratio = np.linalg.norm(new - old) / np.linalg.norm(old)
                assert rows["weight", name].update_ratio == pytest.approx(ratio, rel=1e-4)
    fault = monitor.first_fault
    assert fault is not None
    assert (fault.step, fault.of, fault.name, fault.first_index) == (4, "gradient", "head", 16)
