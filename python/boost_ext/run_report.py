"""The public name of :mod:`boost_ext.report`."""

from boost_ext.report import *  # noqa: F403
from boost_ext.report import __all__  # noqa: F401
