"""boost_ext on CUDA arrays beside PyTorch: ``python -m benchmarks.cuda``.

Each case is a set of tensors on the device, one of our calls and PyTorch's ways to the same answer. It is written once:
on a card the tensors are PyTorch's, in a dry run NumPy's memory, which the emulated kernels take for a device's.
"""
