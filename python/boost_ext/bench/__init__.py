"""How fast the ops are beside NumPy, PyTorch and MindSpore: the harness, and the cases of ``boost-ext bench``.

The peers are taken where they are installed. The repository's ``benchmarks`` has many more cases on the same harness.
"""
