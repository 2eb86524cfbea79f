"""
Train a small network on the handwritten digits of scikit-learn with DistributedDataParallel.

Reads digits.npz from the dataset directory and init.pt from the model directory, trains on all ranks,
and rank 0 writes checkpoint.pt and prints the test accuracy.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORKSPACE = Path("/workspace")  # where Kubeflow's initializers put things


def network() -> nn.Module:
    """Return the model that init.pt holds the weights of: 64 pixels in, 10 classes out."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def load(directory: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test set, four to one; pixels are scaled to 0..1."""
    with np.load(directory / "digits.npz") as data:
        pixels = torch.tensor(data["images"], dtype=torch.float32) / 16
        labels = torch.tensor(data["labels"], dtype=torch.int64)
    # Shuffled, the same way on all ranks: the file is ordered by writer, and the last writers' hands are strange.
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(1))
    training, test = order.split(len(order) * 4 // 5)[:2]
    return TensorDataset(pixels[training], labels[training]), TensorDataset(pixels[test], labels[test])


def train(model: nn.Module, data: TensorDataset, *, epochs: int) -> None:
    """Train in place; every rank sees its share of the data."""
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data, seed=1)
    batches = DataLoader(data, batch_size=32, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for pixels, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            optimizer.step()


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of correct answers on the test set."""
    pixels, labels = data.tensors
    with torch.no_grad():
        return float((model(pixels).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train, save, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    paths = {kind: os.environ.get(f"TRAINER_AGENT_INIT_{kind.upper()}_OUTPUT_PATH") for kind in ("dataset", "model")}
    parser.add_argument("--dataset", type=Path, default=paths["dataset"] or WORKSPACE / "dataset")
    parser.add_argument("--model", type=Path, default=paths["model"] or WORKSPACE / "model")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(1)
    model = network()
    model.load_state_dict(torch.load(Path(args.model) / "init.pt", weights_only=True))
    training, test = load(Path(args.dataset))
    # Gone before the process group is: its threads use the group's.
    train(DistributedDataParallel(model), training, epochs=args.epochs)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), Path(args.model) / "checkpoint.pt")
        print(f"world size {dist.get_world_size()}, test accuracy {accuracy(model, test):.3f}", flush=True)
    dist.barrier()  # nobody leaves while another still needs the connection
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
