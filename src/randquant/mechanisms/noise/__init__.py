"""Integer noise: its laws and how they are drawn."""
