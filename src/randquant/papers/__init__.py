"""The papers' experiments, one paper a folder."""
