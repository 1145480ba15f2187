"""The demo's model and clients: randquant train examples/digits.py --epsilon 8."""

import torch
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16).float(), torch.tensor(labels)
clients = {f"phone {k}": (x[k:1500:200], y[k:1500:200]) for k in range(200)}
model, test = torch.nn.Linear(64, 10), (x[1500:], y[1500:])
