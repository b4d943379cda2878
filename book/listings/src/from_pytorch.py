import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)


def points():
    x = torch.arange(64).unsqueeze(1) / 64
    return TensorDataset(x, 3 * x + 1)


def train():
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(Line())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.3)
    dataset = points()
    sampler = DistributedSampler(dataset, shuffle=True, seed=7)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(60):
        sampler.set_epoch(epoch)
        mean = torch.zeros(2)
        for x, y in loader:
            loss = nn.functional.mse_loss(ddp(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean += torch.tensor([loss.item() * len(x), len(x)])
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {mean[0] / mean[1]:.6f}")
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), "line.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
