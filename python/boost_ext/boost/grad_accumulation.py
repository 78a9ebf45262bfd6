"""Replaces ``mindspore.boost.grad_accumulation``."""

from boost_ext.ms.step.grad_accumulation import GradientAccumulation, gradient_accumulation_op, gradient_clear_op

__all__ = ["GradientAccumulation", "gradient_accumulation_op", "gradient_clear_op"]
