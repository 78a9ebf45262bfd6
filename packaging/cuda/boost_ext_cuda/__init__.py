"""The native module of boost_ext with CUDA kernels. Import :mod:`boost_ext`, which uses it."""
