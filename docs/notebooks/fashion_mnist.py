"""A GroupNorm network on Fashion-MNIST, 3,400 clients, epsilon 8: give the folder of its files."""

import sys

import torch
from torch import nn

import randquant as rq
from randquant.training.data import datasets

data = datasets.load("fashion-mnist", sys.argv[1])
parts = datasets.partition(data.train_labels, 3400, "iid", seed=0)
clients = [(data.train_features[part], data.train_labels[part]) for part in parts]
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
)  # fmt: skip
test = data.test_features, data.test_labels
run = rq.train(model, clients, test=test, epsilon=8, rounds=50, cohort=400, folder="runs/fashion")
print(run)
run.report("fashion-mnist.html")
