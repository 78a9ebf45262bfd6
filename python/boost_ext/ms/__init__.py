"""Everything that touches MindSpore. Users import :mod:`boost_ext.boost` and :mod:`boost_ext.amp`."""

import logging

from boost_ext.requirements import missing

try:
    import mindspore
except ImportError as error:
    raise missing("mindspore", "mindspore", error) from error

_TESTED = "2.10"
if mindspore.__version__.split(".")[:2] != _TESTED.split("."):
    logging.getLogger("boost_ext").warning(
        "boost_ext was tested with MindSpore %s, and this is MindSpore %s", _TESTED, mindspore.__version__
    )
