"""Adam and its relatives with the same state."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from mindspore import Parameter, Tensor

from boost_ext.ms.optim.arguments import recorded, require_bool, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.storage import StateStorage, state_like

__all__ = ["Adam", "AdamOffload", "AdamW", "AdamWeightDecay", "DecoupledAdam", "LazyAdam", "NAdamW"]


class _Adam(FusedOptimizer):
    """Adam's state and arguments."""

    rule = "adam"
    power_shape: tuple[int, ...] = (1,)  # as in mindspore.nn's class, for checkpoints
    takes_rows = True

    def _make(
        self,
        beta1: float,
        beta2: float,
        eps: float,
        use_locking: bool,
        use_nesterov: bool,
        use_amsgrad: bool,
        storage: StateStorage | None = None,
        cautious: bool = False,
    ) -> None:
        owner = type(self).__name__
        hyper = require_hyper(
            owner, self.rule, beta1=beta1, beta2=beta2, eps=eps, use_nesterov=use_nesterov, cautious=cautious
        )
        require_bool(owner, "use_locking", use_locking)
        require_bool(owner, "use_amsgrad", use_amsgrad)
        self.use_nesterov = use_nesterov
        self.use_amsgrad = use_amsgrad
        one = Tensor(np.ones(self.power_shape, np.float32))
        self.beta1_power = Parameter(one, name="beta1_power", requires_grad=False)
        self.beta2_power = Parameter(one, name="beta2_power", requires_grad=False)
        storage = storage or StateStorage(owner)
        if use_amsgrad and storage.dtype != "float32":
            raise ValueError(f"{owner}: state_dtype must be 'float32' with use_amsgrad, got {storage.dtype!r}")
        self.moment1 = storage.state_like(self.parameters, "moment1")
        self.moment2 = storage.state_like(self.parameters, "moment2")
        states = [self.moment1, self.moment2]
        if use_amsgrad:
            self.vhat = state_like(self.parameters, "vhat")
            states.append(self.vhat)
        powers = (self.beta1_power, self.beta2_power)
        self.fuse(hyper, states, powers=powers, storage=storage)


class Adam(_Adam):
    r"""Adaptive moment estimation.

    .. math::
        m_{t+1} = \beta_1 m_t + (1-\beta_1) g, \quad v_{t+1} = \beta_2 v_t + (1-\beta_2) g^2, \quad
        w_{t+1} = w_t - l \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t} \frac{m_{t+1}}{\sqrt{v_{t+1}} + \epsilon}

    with Nesterov momentum :math:`\beta_1 m_{t+1} + (1-\beta_1) g` in the place of :math:`m_{t+1}`, and with AMSGrad
    the largest v so far in the place of v. The powers of the betas come from the step counter, in float64;
    ``beta1_power`` and ``beta2_power`` are kept for checkpoints.

    Source: Kingma and Ba 2015, *Adam: a method for stochastic optimization*, the form at the end of section 2, as
    ``mindspore.nn.Adam``; Reddi et al. 2018 (AMSGrad).

    Args:
        params, learning_rate, weight_decay, loss_scale: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.
        use_locking (bool): ignored, since an update is one call. Default: False.
        use_nesterov (bool): Default: False.
        use_amsgrad (bool): Default: False. Only with float32 state.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor, ops
        >>> from boost_ext import optim
        >>> w = Parameter(ops.ones((64, 64)), name="w")
        >>> optimizer = optim.Adam([w], 0.25, state_dtype="bfloat16")
        >>> _ = optimizer((ops.ones((64, 64)),))
        >>> print(optimizer.moment1[0].dtype, w.asnumpy()[0, 0].round(2))
        BFloat16 0.75
    """

    power_shape = ()

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_amsgrad: bool = False,
        *,
        cautious: bool = False,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        storage = StateStorage("Adam", state_dtype, state_seed)
        self._make(beta1, beta2, eps, use_locking, use_nesterov, use_amsgrad, storage, cautious)


class _AdamWithoutAmsGrad(_Adam):
    """The signature of :class:`LazyAdam` and :class:`AdamOffload`."""

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        self._make(beta1, beta2, eps, use_locking, use_nesterov, False)


class LazyAdam(_AdamWithoutAmsGrad):
    """:class:`Adam`. With a sparse gradient it updates only the rows that the gradient names, and their moments.

    t counts the steps of the optimizer, not those of a row.

    Source: ``mindspore.nn.LazyAdam``. Arguments as :class:`Adam`, without AMSGrad.

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from mindspore.common.sparse_tensor import RowTensorInner
        >>> from boost_ext import optim
        >>> table = Parameter(Tensor([[1.0], [1.0], [1.0]]), name="table")
        >>> optimizer = optim.LazyAdam([table], 0.25)
        >>> _ = optimizer((RowTensorInner(Tensor([2]), Tensor([[5.0]]), (3, 1)),))  # of an embedding
        >>> print(table.asnumpy().round(2).ravel())
        [1.   1.   0.75]
    """


class AdamOffload(_AdamWithoutAmsGrad):
    """:class:`Adam` with its state, and the update, in host memory. On a CPU it is Adam.

    Source: ``mindspore.nn.AdamOffload``. Arguments as :class:`Adam`, without AMSGrad.

    Attributes:
        host_bytes (int): memory that the state takes on the host.

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> optimizer = optim.AdamOffload([Parameter(Tensor([1.0, 1.0]), name="w")], 0.25)
        >>> optimizer.host_bytes
        16
    """

    @property
    def host_bytes(self) -> int:
        """Memory of moments and masters, in bytes."""
        return sum(state.nbytes for state in (*self.moment1, *self.moment2, *self.half_masters))


class DecoupledAdam(FusedOptimizer):
    """The state and the arguments of the rules with Adam's moments and decoupled weight decay."""

    state_prefixes: ClassVar[tuple[str, str]]  # of the moments, in a checkpoint

    def _make(self, state_dtype: str, state_seed: int, states: Any = (), **hyper: Any) -> None:
        """`states`: those of the rule beside Adam's. `hyper`: all hyperparameters of the rule."""
        owner = type(self).__name__
        ordered = require_hyper(owner, self.rule, **hyper)
        storage = StateStorage(owner, state_dtype, state_seed)
        self.moments1, self.moments2 = (storage.state_like(self.parameters, prefix) for prefix in self.state_prefixes)
        self.fuse(ordered, (self.moments1, self.moments2, *states), storage=storage)


class AdamW(DecoupledAdam):
    r"""Adam with decoupled weight decay and with bias correction, as ``torch.optim.AdamW``.

    .. math::
        m_t = \beta_1 m_{t-1} + (1-\beta_1) g, \quad v_t = \beta_2 v_{t-1} + (1-\beta_2) g^2, \quad
        w_t = w_{t-1} - l \left( \frac{m_t / (1-\beta_1^t)}{\sqrt{v_t / (1-\beta_2^t)} + \epsilon}
        + \lambda w_{t-1} \right)

    A checkpoint names the moments as ``mindspore.mint.optim.AdamW`` does. There is no AMSGrad.

    Source: Loshchilov and Hutter 2019, *Decoupled weight decay regularization*, algorithm 2.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.01.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.AdamW([w], 0.5, weight_decay=0.1)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy().round(3))
        [0.45 1.45]
    """

    rule = "adamw"
    state_prefixes = ("exp_avg", "exp_avg_sq")

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: Any = 0.01,
        *,
        cautious: bool = False,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        self._make(state_dtype, state_seed, beta1=beta1, beta2=beta2, eps=eps, cautious=cautious)


class NAdamW(DecoupledAdam):
    r""":class:`AdamW` with Nesterov momentum, as ``torch.optim.NAdam`` with ``decoupled_weight_decay=True``.

    .. math::
        c_i = \beta_1 \left( 1 - \tfrac{1}{2} 0.96^{i \psi} \right), \quad
        n_t = \frac{c_{t+1} m_t}{1 - \prod_{i=1}^{t+1} c_i} + \frac{(1 - c_t) g}{1 - \prod_{i=1}^t c_i}, \quad
        w_t = w_{t-1} - l \left( \frac{n_t}{\sqrt{v_t / (1-\beta_2^t)} + \epsilon} + \lambda w_{t-1} \right)

    with Adam's moments. The products come from the step counter, in float64.

    Source: Dozat 2016, *Incorporating Nesterov momentum into Adam*; decoupled decay: Loshchilov and Hutter 2019.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.01.
        momentum_decay (float): psi, >= 0. Default: 0.004.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.NAdamW([w], 0.1, weight_decay=0.1)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy().round(3))
        [0.884 1.096]
    """

    rule = "nadamw"
    state_prefixes = ("exp_avg", "exp_avg_sq")

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 2e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: Any = 0.01,
        momentum_decay: float = 0.004,
        *,
        cautious: bool = False,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "momentum_decay": momentum_decay, "cautious": cautious}
        self._make(state_dtype, state_seed, **hyper)


class AdamWeightDecay(DecoupledAdam):
    r"""Adam with decoupled weight decay and without bias correction.

    .. math::
        m_{t+1} = \beta_1 m_t + (1-\beta_1) g, \quad v_{t+1} = \beta_2 v_t + (1-\beta_2) g^2, \quad
        w_{t+1} = w_t - l \left( \frac{m_{t+1}}{\sqrt{v_{t+1}} + \epsilon} + \lambda w_t \right)

    Arithmetic and state are float32, also for half-precision parameters, whose small steps
    ``mindspore.nn.AdamWeightDecay`` loses.

    Source: ``mindspore.nn.AdamWeightDecay``; decoupled decay: Loshchilov and Hutter 2019.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-6.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.0.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.AdamWeightDecay([w], 0.01, weight_decay=0.5)
        >>> _ = optimizer((Tensor([0.0, 0.0]),))
        >>> print(w.asnumpy().round(4))
        [0.995 0.995]
    """

    rule = "adam_weight_decay"
    state_prefixes = ("adam_m", "adam_v")

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: Any = 0.0,
        *,
        cautious: bool = False,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        self._make(state_dtype, state_seed, beta1=beta1, beta2=beta2, eps=eps, cautious=cautious)
