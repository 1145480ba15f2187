"""The site of all reproductions."""
