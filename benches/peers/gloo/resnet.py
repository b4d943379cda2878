"""One rank of torch's DistributedDataParallel with gloo training ResNet-18, torchvision's, on random images of 32 x 32
pixels, as `benches/src/bin/resnet.rs` does; prints the median of the images per second, on the slowest rank.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python resnet.py STEPS BATCH
"""

import json
import statistics
import sys
import time

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CLASSES, SIDE, WARM_UP_STEPS = 10, 32, 3


class Block(nn.Module):
    def __init__(self, source, target, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(source, target, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(target)
        self.conv2 = nn.Conv2d(target, target, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(target)
        self.downsample = nn.Identity()
        if source != target or stride != 1:
            around = nn.Conv2d(source, target, 1, stride, bias=False)
            self.downsample = nn.Sequential(around, nn.BatchNorm2d(target))

    def forward(self, x):
        inside = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(inside)) + self.downsample(x), inplace=True)


def resnet18():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    source = 64
    for stage in range(4):
        target = 64 << stage
        layers += [Block(source, target, min(stage + 1, 2)), Block(target, target, 1)]
        source = target
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, CLASSES)]
    return nn.Sequential(*layers)


def main():
    steps, batch = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    network = resnet18()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    torch.manual_seed(1 + distributed.get_rank())
    images = torch.randn(batch, 3, SIDE, SIDE)
    labels = torch.arange(batch) % CLASSES
    times = []
    for step in range(steps + WARM_UP_STEPS):
        distributed.barrier()
        started = time.perf_counter()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        mean = loss.detach()
        distributed.all_reduce(mean)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        slowest = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
        distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
        if step >= WARM_UP_STEPS:
            times.append(slowest.item())
    if distributed.get_rank() == 0:
        images = batch * distributed.get_world_size()
        last = mean.item() / distributed.get_world_size()
        print(json.dumps({"images_per_second": images / statistics.median(times), "loss": last}))
    distributed.destroy_process_group()


main()
