"""The QMGeo mechanism."""
