"""Whole trainings of public networks beside ``mindspore.Model``: ``python -m benchmarks.networks``."""
