"""What torchvision's ResNet-34 is saved as, and what it makes of a few pictures.

    reference.py FOLDER

writes resnet34.pth as torch.save does now, legacy.pth as it did before PyTorch 1.6, wrapped.pth with
the names that DistributedDataParallel gives, and, as plain 32-bit floats, pictures.f32 (2 x 3 x 64 x 64)
and scores.f32 (2 x 10). The parameters are random, and the running statistics those of random pictures.
"""

import collections
import pathlib
import sys

import torch
import torchvision


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(3)
    model = torchvision.models.resnet34(num_classes=10)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.0)
                module.bias.uniform_(-0.2, 0.2)
        # Statistics other than those that a new network has.
        for _ in range(4):
            model(torch.rand(8, 3, 64, 64))
        model.eval()
        pictures = torch.rand(2, 3, 64, 64)
        scores = model(pictures)
    state = model.state_dict()
    wrapped = collections.OrderedDict((f"module.{name}", value) for name, value in state.items())
    torch.save(state, folder / "resnet34.pth")
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(wrapped, folder / "wrapped.pth")
    (folder / "pictures.f32").write_bytes(pictures.numpy().tobytes())
    (folder / "scores.f32").write_bytes(scores.numpy().tobytes())


if __name__ == "__main__":
    main()
