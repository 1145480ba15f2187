"""The commands: each file here is one, and says in `COMMAND` what it is."""
