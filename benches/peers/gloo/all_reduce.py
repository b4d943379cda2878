"""Times torch.distributed.all_reduce of floats with the gloo backend, for one message size:

    all_reduce.py BYTES SAMPLES WARMUP ROTATE_BYTES

It does what `bonfire bench all-reduce` does, step by step: operations take turns in buffers that are
larger than the caches together, all data look random, every result is verified off the clock,
operations shorter than 20 us are timed in batches, and each figure is that of the rank where it is
largest. The environment says which rank this is; rank 0 prints one JSON object.
"""

import json
import math
import statistics
import sys
import time

import numpy
import torch
import torch.distributed as distributed

SLOTS_MAX = 512
SAMPLE_MIN_S = 20e-6
NUMBERS = 4096


class Run:
    def __init__(self, size, rotate):
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()
        self.count = size // 4
        slots = min(max(-(-rotate // size), 2), SLOTS_MAX)
        self.slots = [torch.zeros(self.count) for _ in range(slots)]
        self.operations = 0
        self.wrong = 0

    def numbers(self, rank, slot):
        """Small whole numbers: sums of them are exact."""
        generator = numpy.random.Generator(numpy.random.PCG64([rank, self.operations + slot]))
        return torch.from_numpy(
            generator.integers(0, NUMBERS, self.count, dtype=numpy.uint16).astype(numpy.float32)
        )

    def round(self, samples, batch):
        """`samples` samples of `batch` operations, each operation in a buffer of its own."""
        used = samples * batch
        for slot in range(used):
            self.slots[slot].copy_(self.numbers(self.rank, slot))
        distributed.barrier()
        times = []
        for sample in range(samples):
            started = time.perf_counter()
            for slot in range(sample * batch, (sample + 1) * batch):
                distributed.all_reduce(self.slots[slot])
            times.append((time.perf_counter() - started) / batch)
        for slot in range(used):
            expected = self.numbers(0, slot)
            for rank in range(1, self.ranks):
                expected += self.numbers(rank, slot)
            self.wrong += int((self.slots[slot] != expected).sum())
        self.operations += used
        return times

    def warm_up(self, warmup):
        """Operations off the record; how many of them make a sample, agreed from rank 0."""
        times = []
        while len(times) < warmup:
            times += self.round(min(warmup - len(times), len(self.slots)), 1)
        batch = min(math.ceil(SAMPLE_MIN_S / max(min(times), 1e-9)), len(self.slots))
        agreed = torch.tensor([batch])
        distributed.broadcast(agreed, 0)
        return int(agreed[0])


def main():
    size, samples, warmup, rotate = (int(text) for text in sys.argv[1:])
    distributed.init_process_group("gloo")
    run = Run(size, rotate)
    batch = run.warm_up(max(warmup, 1))
    times = []
    while len(times) < samples:
        times += run.round(min(len(run.slots) // batch, samples - len(times)), batch)
    own = [min(times), sorted(times)[len(times) // 2], statistics.fmean(times)]
    slowest = torch.tensor(own, dtype=torch.float64)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    wrong = torch.tensor([run.wrong])
    distributed.all_reduce(wrong)
    if run.rank == 0:
        fastest, median, mean = (1e6 * second for second in slowest.tolist())
        print(json.dumps({
            "min_us": fastest, "time_us": median, "mean_us": mean, "batch": batch,
            "wrong": int(wrong[0]),
        }))
    distributed.destroy_process_group()
    sys.exit(int(wrong[0] > 0))


if __name__ == "__main__":
    main()
