"""MindSpore's base classes with the types of what users call: MindSpore itself ships none.

For a type checker each is a subclass with declared methods; at run time it is MindSpore's class itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

__all__ = ["Callback", "Cell", "Model", "Optimizer"]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    class Cell(nn.Cell):
        """``mindspore.nn.Cell``."""

        def __call__(self, *inputs: Any, **kwargs: Any) -> Any: ...
        def set_train(self, mode: bool = True) -> Self: ...
        def set_inputs(self, *inputs: Any, **kwargs: Any) -> None: ...
        def trainable_params(self, recurse: bool = True) -> list[Any]: ...
        def get_parameters(self, expand: bool = True) -> Iterator[Any]: ...
        def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Any]]: ...
        def parameters_dict(self, recurse: bool = True) -> dict[str, Any]: ...
        def cells_and_names(self, cells: Any = None, name_prefix: str = "") -> Iterator[tuple[str, Any]]: ...

    class Optimizer(Cell, nn.Optimizer):
        """``mindspore.nn.Optimizer``."""

        parameters: Any
        learning_rate: Any
        weight_decay: Any

        def get_lr(self) -> Any: ...
        def get_weight_decay(self) -> Any: ...

    class Callback(ms.Callback):
        """``mindspore.Callback``."""

        def __enter__(self) -> Self: ...
        def on_train_begin(self, run_context: Any) -> None: ...
        def on_train_end(self, run_context: Any) -> None: ...
        def on_train_epoch_begin(self, run_context: Any) -> None: ...
        def on_train_epoch_end(self, run_context: Any) -> None: ...
        def on_train_step_begin(self, run_context: Any) -> None: ...
        def on_train_step_end(self, run_context: Any) -> None: ...
        def on_eval_begin(self, run_context: Any) -> None: ...
        def on_eval_end(self, run_context: Any) -> None: ...

    class Model(ms.Model):
        """``mindspore.Model``."""

        @property
        def train_network(self) -> Any: ...
        @property
        def predict_network(self) -> Any: ...
        @property
        def eval_network(self) -> Any: ...
        def train(
            self,
            epoch: int,
            train_dataset: Any,
            callbacks: Any = None,
            dataset_sink_mode: bool = False,
            sink_size: int = -1,
            initial_epoch: int = 0,
        ) -> None: ...
        def fit(
            self,
            epoch: int,
            train_dataset: Any,
            valid_dataset: Any = None,
            valid_frequency: int | list[int] = 1,
            callbacks: Any = None,
            dataset_sink_mode: bool = False,
            valid_dataset_sink_mode: bool = False,
            sink_size: int = -1,
            initial_epoch: int = 0,
        ) -> None: ...
        def build(
            self,
            train_dataset: Any = None,
            valid_dataset: Any = None,
            sink_size: int = -1,
            epoch: int = 1,
            sink_mode: bool = True,
        ) -> None: ...
        def eval(
            self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False
        ) -> dict[str, Any]: ...
        def predict(self, *predict_data: Any, backend: str | None = None, config: Any = None) -> Any: ...

else:
    Callback, Cell, Model, Optimizer = ms.Callback, nn.Cell, ms.Model, nn.Optimizer
