"""The public name of :mod:`boost_ext.subspace.span`."""

from boost_ext.subspace.span import *  # noqa: F403
from boost_ext.subspace.span import __all__  # noqa: F401
