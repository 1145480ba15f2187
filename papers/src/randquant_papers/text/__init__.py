"""Models of text, what is trained beside them, and scores for each client."""
