"""How fast boost_ext is, beside its peers: ``python -m benchmarks``, from the repository's root.

One ``bench_<op>.py`` an op or scenario; each has ``cases(quick)``, which yields
:class:`boost_ext.bench.harness.Case`. A file that is added is found by its name.
"""
