"""Everything that touches MindSpore. Users import :mod:`boost_ext.boost` and :mod:`boost_ext.amp`."""
