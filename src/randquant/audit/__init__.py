"""Attacks on the real pipeline that bound epsilon from below."""
