"""A model of text: numbers of characters in, a score of every character that may follow out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from randquant_papers.data.shakespeare import CHARACTERS, LENGTH


class Block(nn.Module):
    """Attention to what came before, then two linear layers, each added to what it reads.

    Plain linear layers, so that each can be adapted (`randquant_papers.text.adapters`).
    """

    HEADS = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_linear = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attended = nn.Linear(width, 3 * width)
        self.combined = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, states: Tensor) -> Tensor:
        """States (n, length, width) after attention: a position's depends on those before it."""
        heads = self.attended(self.before_attention(states)).unflatten(-1, (3, self.HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return states + self.combined(seen.transpose(1, 2).flatten(2))

    def widen(self, states: Tensor) -> Tensor:
        """States (…, width) after the two linear layers, each position's from its own alone."""
        hidden = nn.functional.gelu(self.wide(self.before_linear(states)))
        return states + self.narrow(hidden)

    def forward(self, states: Tensor) -> Tensor:
        """States (n, length, width) after those of (n, length, width)."""
        return self.widen(self.attend(states))


class CharacterTransformer(nn.Module):
    """A small transformer; what a position predicts depends on it and those before it alone.

    There is no dropout: a client's few examples are seen once, and steps draw no numbers.

    Args:
        characters: how many different ones there are.
        length: most characters of a text.
        width: numbers that stand for a position, a multiple of four.
        layers: how many blocks.
    """

    def __init__(self, characters: int, length: int, *, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, texts: Tensor) -> Tensor:
        """Scores (n, characters, length) of texts (n, length) int64."""
        states = self.embedding(texts) + self.positions[: texts.shape[1]]
        return self.head(self.norm(self.blocks(states))).transpose(1, 2)


def transformer(seed: int = 0) -> CharacterTransformer:
    """Two layers of width 64 for the data set's windows: 115,536 parameters, drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CharacterTransformer(len(CHARACTERS), LENGTH)
