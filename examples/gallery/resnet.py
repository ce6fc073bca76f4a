"""Train a residual network of PyTorch: the batch over two ranks, a whole step as one program."""

import torch
from torch import nn
from torch.nn import functional as F

import meshweave as mw


class Block(nn.Module):
    """Two convolutions, and what goes past them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
        )
        self.second = nn.Sequential(
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        )
        self.past = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.past(x))


def resnet():
    return nn.Sequential(Block(3, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(step, model, x, y, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if step is None:
        step = mw.from_torch(
            train_step,
            (model, optimizer, x, y),
            mesh="dp=2",
            placements={"x": "[dp, _, _, _]", "y": "[dp]"},
        )
    return [float(step(model, optimizer, x, y)) for _ in range(steps)]


def main():
    torch.manual_seed(0)
    y = torch.arange(16) % 4
    x = torch.randn(16, 3, 12, 12) + y[:, None, None, None] * torch.linspace(0, 1, 12)
    torch.manual_seed(1)
    ours = trained(None, resnet(), x, y, 10)
    torch.manual_seed(1)
    eager = trained(train_step, resnet(), x, y, 10)
    print(
        f"loss {ours[0]:.2f} -> {ours[-1]:.2f}; PyTorch on one device {eager[0]:.2f} -> {eager[-1]:.2f}"
    )
    assert all(abs(a - b) < 1e-3 for a, b in zip(ours, eager))


if __name__ == "__main__":
    main()
