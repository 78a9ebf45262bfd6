"""What ranks run: ``ranks.py '[["script", "argument", ...], ...]'``, the main functions of these scripts."""

from __future__ import annotations

import gc
import json
import sys
from importlib import import_module

import mindspore as ms

from boost_ext.distributed import init_ranks


def main() -> None:
    jobs = [(import_module(script).main, arguments) for script, *arguments in json.loads(sys.argv[1])]
    gc.freeze()  # as in tests/conftest.py
    ms.set_device("CPU")
    init_ranks(120)
    for run, arguments in jobs:
        ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        run(arguments)
        gc.collect()  # as between tests: MindSpore would go through it before each compilation
        gc.freeze()


if __name__ == "__main__":
    main()
