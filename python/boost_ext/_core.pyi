from typing import Any, TypedDict

import numpy.typing as npt

class _CudaInfo(TypedDict):
    runtime: str
    architectures: list[str]
    emulated: bool
    cublas: str | None

class _AscendInfo(TypedDict):
    emulated: bool

class _BuildInfo(TypedDict):
    version: str
    compiler: str
    flags: str
    backends: list[str]
    cuda: _CudaInfo | None
    ascend: _AscendInfo | None
    built_isas: list[str]
    cpu_isas: list[str]
    isa: str
    threads: int

class DeviceArray:
    """A number or an array that stays on a device. ``bool``, ``float``, ``item()`` and ``numpy()`` wait for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any: ...
    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]: ...
    def numpy(self) -> npt.NDArray[Any]: ...
    def item(self) -> Any: ...
    def __bool__(self) -> bool: ...
    def __float__(self) -> float: ...

def set_stream(stream: int | None) -> int | None: ...
def optimizer_step(
    weights: Any,
    masters: Any,
    grads: Any,
    state: Any,
    scales: Any,
    rule: str,
    hyper: list[float],
    scale: Any,
    step: Any,
    lr: Any,
    weight_decay: Any,
    ratio: Any,
    centralize: list[int],
    first: list[int],
    seed: int,
    skip: Any = None,
) -> None: ...
def optimizer_step_rows(
    weights: Any,
    master: Any,
    indices: Any,
    values: Any,
    state: Any,
    rule: str,
    hyper: list[float],
    scale: Any,
    step: Any,
    lr: Any,
    weight_decay: Any,
    ratio: Any,
    centralize: list[int],
    first: list[int],
    seed: int,
    skip: Any = None,
) -> None: ...
def adafactor_step(
    params: Any,
    masters: Any,
    grads: Any,
    rows: Any,
    columns: Any,
    squares: Any,
    moments: Any,
    hyper: list[float],
    scale: float,
    step: int,
    lr: list[float],
    weight_decay: list[float],
    centralize: list[int],
    skip: Any,
) -> None: ...
def muon_step(
    params: Any,
    masters: Any,
    grads: Any,
    moments1: Any,
    moments2: Any,
    hyper: list[float],
    adamw: list[float],
    scale: float,
    step: int,
    lr: list[float],
    weight_decay: list[float],
    ratio: list[float],
    centralize: list[int],
    skip: Any,
) -> None: ...
def apollo_step(
    hyper: list[float],
    params: Any,
    masters: Any,
    grads: Any,
    norms: Any,
    moments1: Any,
    moments2: Any,
    adamw: list[float],
    seed: int,
    numbers: list[int],
    scale: float,
    step: int,
    lr: list[float],
    weight_decay: list[float],
    ratio: list[float],
    centralize: list[int],
    skip: Any,
) -> None: ...
def galore_step(
    hyper: list[float],
    params: Any,
    masters: Any,
    grads: Any,
    projections: Any,
    moments1: Any,
    moments2: Any,
    adamw: list[float],
    seed: int,
    numbers: list[int],
    scale: float,
    step: int,
    lr: list[float],
    weight_decay: list[float],
    ratio: list[float],
    centralize: list[int],
    skip: Any,
) -> None: ...
def call(name: str, *parts: Any) -> bool: ...
def fixed_arrays(tensors: Any, owner: str) -> Any: ...
def require_same(fixed: Any) -> None: ...
def optimizer_rules() -> list[str]: ...
def rule_facts(rule: str) -> dict[str, Any]: ...
def take_graph_error() -> str: ...
def schemas() -> dict[str, list[dict[str, Any]]]: ...
def build_info() -> _BuildInfo: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def float32_matmul_precision() -> str: ...
def set_float32_matmul_precision(precision: str) -> None: ...
def has_narrow_products() -> bool: ...
def set_isa(name: str) -> None: ...

# The ops of _core.schemas(); boost_ext.ops gives them their types.
def __getattr__(name: str) -> Any: ...
