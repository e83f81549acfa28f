"""The commands, one file a group; each module has a `register(app)`."""
