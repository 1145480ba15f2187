"""Integer noise: its laws, and how to draw from them."""
