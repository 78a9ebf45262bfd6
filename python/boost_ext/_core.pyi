from typing import Any, TypedDict

import numpy.typing as npt

class _CudaInfo(TypedDict):
    runtime: str
    architectures: list[str]
    emulated: bool

class _BuildInfo(TypedDict):
    version: str
    compiler: str
    backends: list[str]
    cuda: _CudaInfo | None
    built_isas: list[str]
    cpu_isas: list[str]
    isa: str
    threads: int

class DeviceArray:
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
def pca_project(P: Any, grads: Any, out: Any, scale: Any = None) -> Any: ...
def pca_back_project(P: Any, vectors: Any, out: Any, scale: Any = None) -> None: ...
def bfgs_update(B: Any, s: Any, y: Any, eps: float, out: Any = None) -> Any: ...
def adasum_dots(a: Any, b: Any, out: Any = None) -> Any: ...
def adasum_combine(a: Any, b: Any, dots: Any, out: Any = None) -> Any: ...
def adasum_pair(a: Any, b: Any, out: Any = None) -> Any: ...
def unscale_and_check(grads: Any, inv_scale: Any, report: bool, out: Any = None) -> Any: ...
def clip_by_global_norm(grads: Any, clip_norm: float, scale: Any, out: Any = None) -> Any: ...
def global_norm(tensors: Any, out: Any = None) -> Any: ...
def centralize(grads: Any, out: Any = None) -> None: ...
def accumulate(accumulators: Any, grads: Any, factor: float, first: bool) -> None: ...
def dim_reduce_direction(
    B: Any,
    s: Any,
    gk_last: Any,
    started: bool,
    gk: Any,
    inv_scale: Any,
    B_next: Any,
    dk: Any,
    eps: float,
    out: Any = None,
) -> Any: ...
def dim_reduce_trial(weights: Any, saved: Any, dn: Any, step: Any, save: bool) -> None: ...
def dim_reduce_apply(
    momentum: Any,
    grads: Any,
    grad_proj: Any,
    dn: Any,
    out: Any,
    gamma: float,
    alpha: float,
    rho: Any,
    inv_scale: Any,
    saved: Any,
    lr: Any,
) -> None: ...
def loss_scale_update(
    scale: Any, counters: Any, overflow: Any, factor: float, window: int, max_scale: float
) -> None: ...
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
def call(name: str, *parts: Any) -> bool: ...
def fixed_arrays(tensors: Any, owner: str) -> Any: ...
def require_same(fixed: Any) -> None: ...
def lars(
    weights: Any,
    grads: Any,
    ratios: Any,
    coefficient: float,
    epsilon: float,
    clip: bool,
    scale: Any,
    lr: list[float],
    weight_decay: list[float],
    apply: list[int],
) -> Any: ...
def covariance(x: Any, patches: list[int], factor: float, out: Any) -> None: ...
def damped_inverse(matrices: Any, factor: list[float], damping: list[float], out: Any, inverted: Any) -> Any: ...
def precondition(grads: Any, left: Any, right: Any, inv_scale: float, out: Any) -> None: ...
def dropout(x: Any, p: float, seed: int, draw: Any, stream: int, shared: int, out: Any) -> Any: ...
def optimizer_rules() -> list[str]: ...
def schemas() -> dict[str, list[dict[str, Any]]]: ...
def build_info() -> _BuildInfo: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def set_isa(name: str) -> None: ...
