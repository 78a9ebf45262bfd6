"""The demonstration behind ``boost-ext train``: a small convolutional network on scikit-learn's digits.

``digits`` and ``network`` are the task, ``settings`` its numbers, ``runs`` the ways to train it, ``results`` what they
measure, ``report`` what the user gets to see; ``distributed`` does it on several processes, which ``msrun`` starts.
MindSpore is needed by ``network``, ``runs`` and ``distributed`` only.
"""
