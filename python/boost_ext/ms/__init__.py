"""Everything that touches MindSpore. Users import :mod:`boost_ext.boost` and :mod:`boost_ext.amp`."""

from boost_ext.requirements import missing

try:
    import mindspore  # noqa: F401
except ImportError as error:
    raise missing("mindspore", "mindspore", error) from error
