"""boost_ext: native kernels and training cells that make MindSpore training faster.

This module and :mod:`boost_ext.ops` need NumPy only; :mod:`boost_ext.boost` and :mod:`boost_ext.amp` need MindSpore
(``pip install boost_ext[mindspore]``).
"""

from boost_ext import ops
from boost_ext._core import build_info, num_threads, set_num_threads

__all__ = ["__version__", "build_info", "num_threads", "ops", "set_num_threads"]

__version__: str = build_info()["version"]
