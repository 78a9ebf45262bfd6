from typing import Any, TypedDict

class _BuildInfo(TypedDict):
    version: str
    compiler: str
    backends: list[str]
    built_isas: list[str]
    cpu_isas: list[str]
    isa: str
    threads: int

def pca_project(P: Any, grads: Any, out: Any) -> Any: ...
def pca_back_project(P: Any, vectors: Any, out: Any) -> None: ...
def bfgs_update(B: Any, s: Any, y: Any, eps: float) -> bool: ...
def adasum_dots(a: Any, b: Any, out: Any) -> None: ...
def adasum_combine(a: Any, b: Any, dots: Any, out: Any) -> None: ...
def adasum_pair(a: Any, b: Any, out: Any) -> None: ...
def unscale_and_check(grads: Any, inv_scale: float, report: bool) -> bool | list[tuple[int, int, int, float]]: ...
def unscale_and_check_report(grads: Any, inv_scale: float, report: Any) -> bool: ...
def check_report(grads: Any, inv_scale: float, report: Any) -> bool: ...
def global_norm(tensors: Any) -> float: ...
def centralize(grads: Any, out: Any = None) -> None: ...
def accumulate(accumulators: Any, grads: Any, factor: float, first: bool) -> None: ...
def timestamp(stamps: Any, slot: int) -> None: ...
def dim_reduce_direction(
    B: Any, s: Any, gk_last: Any, started: bool, gk: Any, inv_scale: float, B_next: Any, dk: Any, eps: float
) -> float: ...
def dim_reduce_trial(weights: Any, saved: Any, dn: Any, step: Any, save: bool) -> None: ...
def dim_reduce_apply(
    momentum: Any,
    grads: Any,
    grad_proj: Any,
    dn: Any,
    out: Any,
    gamma: float,
    alpha: float,
    rho: float,
    inv_scale: float,
    saved: Any,
    lr: Any,
) -> None: ...
def loss_scale_update(
    scale: Any, counters: Any, overflow: bool, factor: float, window: int, max_scale: float
) -> None: ...
def group_unscale_and_check(grads: Any, groups: Any, scales: Any, found: Any, report: Any) -> bool: ...
def group_loss_scale_update(scales: Any, found: Any, overflows: Any, max_scale: float) -> None: ...
def optimizer_step(
    weights: Any,
    masters: Any,
    grads: Any,
    state: Any,
    scales: Any,
    rule: str,
    hyper: list[float],
    scale: float,
    step: int,
    lr: list[float],
    weight_decay: list[float],
    ratio: list[float],
    centralize: list[int],
    first: list[int],
    seed: int,
) -> None: ...
def optimizer_step_rows(
    weights: Any,
    master: Any,
    indices: Any,
    values: Any,
    state: Any,
    rule: str,
    hyper: list[float],
    scale: float,
    step: int,
    lr: list[float],
    weight_decay: list[float],
    ratio: list[float],
    centralize: list[int],
    first: list[int],
    seed: int,
) -> None: ...
def fixed_arrays(tensors: Any) -> Any: ...
def packed_step(*args: Any) -> None: ...
def packed_lars(arrays: Any) -> None: ...
def lars(
    weights: Any,
    grads: Any,
    ratios: Any,
    coefficient: float,
    epsilon: float,
    clip: bool,
    scale: float,
    lr: list[float],
    weight_decay: list[float],
    apply: list[int],
) -> None: ...
def optimizer_rules() -> list[str]: ...
def build_info() -> _BuildInfo: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def set_isa(name: str) -> None: ...
