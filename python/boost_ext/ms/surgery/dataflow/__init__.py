"""Data flow of a network, read from the source of its cells without running it.

An abstract interpreter over the syntax tree of every ``construct``. Attributes, child cells, constants, and conditions
and loops over them, are evaluated. A tensor is a :class:`Node`, and so is the result of an operation on tensors. Any
other value is unknown, and both sides of a condition on it are followed. A cell whose ``construct`` cannot be followed
becomes one node that depends on all its inputs, with the reason in the notes. Its child cells are then followed on
their own.
"""

from boost_ext.ms.surgery.dataflow.tracer import Flow, trace
from boost_ext.ms.surgery.dataflow.values import Kind, Node

__all__ = ["Flow", "Kind", "Node", "trace"]
