"""Parameters that meet a target: of one coordinate, of a whole update."""
