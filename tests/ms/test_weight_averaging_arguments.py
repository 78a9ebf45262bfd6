"""What trainable weight averaging refuses, and who refuses it."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms.test_weight_averaging import Regression, checkpoints, made

from boost_ext import boost, optim
from boost_ext.config import DimReduceConfig


def a_tuple(beta: list[Parameter]) -> Any:
    return tuple(beta)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"args": ()}, ValueError, "one of learning_rate and optimizer must be given, got neither"),
        ({"args": (0.1,), "optimizer": nn.SGD}, ValueError, "one of learning_rate and optimizer .* got both"),
        ({"args": (), "optimizer": nn.SGD, "loss_scale": 2.0}, ValueError, "must be left out with optimizer"),
        ({"args": (), "optimizer": a_tuple}, TypeError, r"optimizer must return a mindspore\.nn\.Optimizer, got tuple"),
        ({"args": (-1.0,)}, ValueError, "'learning rate' must be float and must >= 0"),
        ({"params": [1]}, TypeError, r"params\[0\] must be a Parameter, got int"),
        (
            {"params": [Parameter(Tensor([1.0], ms.float64), name="wide")]},
            TypeError,
            "wide must be float32, float16 or bfloat16, got float64",
        ),
        ({"params": []}, ValueError, "params must hold a floating point Parameter that is trained, got 0 others"),
        ({"weight_load_dir": None}, ValueError, r"weight_load_dir .* or pca_mat_path .* must be given, got neither"),
        ({"weight_load_dir": "/nope"}, ValueError, "directory must be an existing directory"),
        ({"weight_load_dir": checkpoints()[:1]}, ValueError, "checkpoints must be two at least, got 1"),
        (
            {"weight_load_dir": [{"w": c["w"]} for c in checkpoints()]},
            ValueError,
            r"must hold all 2 parameters, got none of these 1: 'b'",
        ),
        ({"weight_load_dir": None, "pca_mat_path": "/nope.npy"}, FileNotFoundError, r"/nope\.npy"),
        ({"dtype": "float64"}, ValueError, "dtype must be float32, float16 or bfloat16, got float64"),
    ],
)
def test_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    net = Regression()
    given = {"weight_load_dir": checkpoints(), **change}
    args, params = given.pop("args", (0.1,)), given.pop("params", net.trainable_params())
    with pytest.raises(error, match=message):
        boost.TrainableWeightAveraging(params, *args, **given)
    np.testing.assert_array_equal(net.w.asnumpy(), 1.0)


def test_who_may_not_take_it() -> None:
    net = Regression()
    twa = made(net)
    other = Parameter(Tensor([1.0], ms.float32), name="other")
    with pytest.raises(
        ValueError, match=r"optimizer must step the parameter that it gets, and no other, got \['other'\]"
    ):
        made(net, optimizer=lambda beta: optim.SGD([other], 0.1))
    with pytest.raises(TypeError, match="restrict: optimizer must not be TrainableWeightAveraging"):
        boost.FreezeOpt(twa, [net.trainable_params()], [0])
    with pytest.raises(TypeError, match="rebuild: optimizer must not be TrainableWeightAveraging"):
        boost.OptimizerProcess(twa).generate_new_optimizer()
    with pytest.raises(ValueError, match="must be alone in moving the weights, got dim_reduce or adasum too"):
        boost.BoostTrainOneStepCell(net, twa, dim_reduce=DimReduceConfig(n_components=2, pca_mat_path="P.npy"))
    with pytest.raises(ValueError, match="TrainableWeightAveraging: gradients must be 2, one a parameter, got 1"):
        twa((Tensor(np.ones((5, 3), np.float32)),))
    with pytest.raises(ValueError, match=r"gradients\[1\] must have the shape of b, \(3,\), got \(4,\)"):
        twa((Tensor(np.ones((5, 3), np.float32)), Tensor(np.ones(4, np.float32))))
