"""A report on training runs: run logs in, one self-contained HTML page out. ``boost-ext report`` is its command.

The plots need matplotlib (``pip install 'boost_ext[report]'``); MindSpore is not needed.
"""

from boost_ext.report.page import html, write
from boost_ext.report.run import Overflows, Run, read

__all__ = ["Overflows", "Run", "html", "read", "write"]
