"""Data flow of a network, read from the source of its cells without running it.

An abstract interpreter over the syntax tree of every ``construct``. What the instance fixes (attributes, child cells,
constants, conditions and loops over them) is evaluated; a tensor is a :class:`Node`, and so is whatever an operation
makes of tensors; everything else is unknown, and both sides of a condition on it are followed. A cell with a construct
that this does not understand becomes one node that depends on all its inputs, with the reason in the notes; its child
cells are then followed on their own.
"""

from boost_ext.ms.surgery.dataflow.tracer import Flow, trace
from boost_ext.ms.surgery.dataflow.values import Kind, Node

__all__ = ["Flow", "Kind", "Node", "trace"]
