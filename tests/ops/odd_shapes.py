"""Every op with one of its arrays in an odd shape. A program: the folder of the tests."""

import faulthandler
import re
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])

from ops.cases import CASES
from ops.producers import ByFunctions, Producer
from ops.test_arguments import last_replaced
from ops.test_shapes import shaped

faulthandler.enable()
faulthandler.dump_traceback_later(60, exit=True)
EXTENTS = [-(2**63), -(2**31), -1, 0, 0, 1, 1, 2, 3, 24, 2**16, 2**31, 2**32, 2**59, 2**60, 2**62, 2**63 - 1]

rng = np.random.default_rng(0)
calls = refused = 0
for case in CASES:
    for name in case.arrays:
        for _ in range(25):
            shape = tuple(int(EXTENTS[i]) for i in rng.integers(len(EXTENTS), size=rng.integers(1, 5)))
            strides = tuple(int(EXTENTS[i]) for i in rng.integers(len(EXTENTS), size=len(shape)))
            strides = strides if rng.integers(2) else None
            if 0 not in shape and all(n >= 0 for n in shape) and np.prod([float(n) for n in shape]) < 2**60:
                continue  # the memory of such a shape would have to be there
            kind = (Producer, ByFunctions)[int(rng.integers(2))]

            def odd(array, kind=kind, shape=shape, strides=strides):
                producer = shaped(kind, shape, strides)
                tensor = producer.struct.tensor
                like = kind(array).struct.tensor
                tensor.code, tensor.bits = like.code, like.bits
                return producer

            arguments = case.make(rng)
            arguments[name] = last_replaced(arguments[name], odd)
            calls += 1
            try:
                case(arguments)
            except (TypeError, ValueError, MemoryError) as refusal:
                refused += 1
                message = str(refusal)
                if isinstance(refusal, MemoryError) or re.match(rf"{case.op}|lars", message):
                    continue
                raise AssertionError(f"{case.op} {name} {shape}: {message}") from refusal
print(calls, refused)
