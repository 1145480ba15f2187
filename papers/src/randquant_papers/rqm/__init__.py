"""Youn, Hu, Ziani and Abernethy 2023: the randomized quantization mechanism."""
