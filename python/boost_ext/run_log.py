"""The public name of :mod:`boost_ext.report.log`."""

from boost_ext.report.log import *  # noqa: F403
from boost_ext.report.log import __all__  # noqa: F401
