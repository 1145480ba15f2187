"""What one release reveals: a coordinate, a vector, a sum."""
