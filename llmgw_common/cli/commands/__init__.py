"""One file a group of commands; each has `add_to(app)`, which main.py calls."""
