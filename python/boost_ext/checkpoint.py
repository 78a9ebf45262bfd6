"""Interrupted training: save and load everything that moves."""

from boost_ext.ms.core.resume import load_training_state, save_training_state

__all__ = ["load_training_state", "save_training_state"]
