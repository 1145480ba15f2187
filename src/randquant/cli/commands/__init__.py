"""The commands: one file each, which defines `COMMAND`."""
