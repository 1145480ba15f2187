"""What the sum of several clients' codes reveals."""
