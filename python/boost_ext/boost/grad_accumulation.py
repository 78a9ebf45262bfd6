"""Stands where ``mindspore.boost.grad_accumulation`` stood."""

from boost_ext.ms.grad_accumulation import GradientAccumulation, gradient_accumulation_op, gradient_clear_op

__all__ = ["GradientAccumulation", "gradient_accumulation_op", "gradient_clear_op"]
