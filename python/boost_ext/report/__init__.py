"""A report on training runs: run logs in, one self-contained HTML page out. ``boost-ext report`` is its command.

The page needs jinja2 and matplotlib (``pip install 'boost_ext[report]'``); MindSpore is not needed.
"""

from boost_ext.report.looks import Looks, TensorHistory
from boost_ext.report.page import html, write
from boost_ext.report.run import Overflows, Run, read

__all__ = ["Looks", "Overflows", "Run", "TensorHistory", "html", "read", "write"]
