"""Two processes of this machine train together: data parallel with the mean of the gradients, then with AdaSum.

The script starts msrun, and msrun starts the script once for each rank. Each rank trains on its half of every batch.
All ranks have the same weights, bit for bit, after every step.
"""

import os
import socket
import subprocess
import sys
import zlib
from pathlib import Path

RANKS, EPOCHS, BATCH, LOGS = 2, 6, 64, "two_ranks_logs"


def train() -> None:
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from boost_ext import boost, optim
    from boost_ext.distributed import init_ranks

    ms.set_device("CPU")
    init_ranks(120)  # seconds to wait for the other rank
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    ms.set_context(mode=ms.GRAPH_MODE)
    rank = ms.communication.get_rank()
    images, labels = load_digits(return_X_y=True)
    data = ((images / 16).astype(np.float32), labels.astype(np.int32))
    x, x_test, y, y_test = train_test_split(*data, test_size=0.2, random_state=0)
    for name in ("mean", "AdaSum"):
        ms.set_seed(0)  # the same initial weights on every rank
        net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))
        loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
        switches = {"mode": "manual", "adasum": name == "AdaSum"}
        auto = boost.AutoBoost("O0", {"boost": switches, "common": {"device_number": 1}})
        _, optimizer = auto.network_auto_process_train(net, optim.Momentum(net.trainable_params(), 0.05, 0.9))
        cell = boost.BoostTrainOneStepCell(loss, optimizer, plan=auto.plan).set_train()
        rng = np.random.default_rng(0)
        for _ in range(EPOCHS):
            order = rng.permutation(len(x))
            for start in range(0, len(x) - BATCH + 1, BATCH):
                mine = order[start : start + BATCH][rank::RANKS]
                cell(Tensor(x[mine]), Tensor(y[mine]))
        accuracy = (net(Tensor(x_test)).asnumpy().argmax(axis=1) == y_test).mean()
        bits = zlib.crc32(b"".join(p.asnumpy().tobytes() for p in net.trainable_params()))
        print(f"rank {rank}, {name}: test accuracy {accuracy:.3f}, checksum of the weights {bits:08x}", flush=True)


if __name__ == "__main__":
    if "MS_ROLE" in os.environ:  # msrun has started this process
        train()
        sys.exit()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mindspore.parallel.cluster.run", f"--worker_num={RANKS}", "--join=True"]
    command += [f"--local_worker_num={RANKS}", f"--master_port={port}", f"--log_dir={LOGS}", __file__]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # msrun starts plain "python"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=300)
    for log in sorted(Path(LOGS).glob("worker_*.log")):
        print(*(line for line in log.read_text().splitlines() if line.startswith("rank ")), sep="\n")
