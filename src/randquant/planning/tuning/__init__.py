"""Parameters that meet a target, for one coordinate or for a whole update."""
