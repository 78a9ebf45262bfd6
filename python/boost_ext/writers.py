"""Writers for ``BoostMonitor``: TensorBoard, MLflow, Weights & Biases. See :mod:`boost_ext.report.writers`."""

from boost_ext.report.writers import MLflow, TensorBoard, WeightsAndBiases, Writer

__all__ = ["MLflow", "TensorBoard", "WeightsAndBiases", "Writer"]
