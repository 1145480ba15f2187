"""Data sets, features, and how examples are split over clients."""
