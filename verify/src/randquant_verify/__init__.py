"""Check a randquant certificate: a program of its own that shares nothing with randquant."""
