"""The composed stack, for real: images built, brought up, asked, restarted and taken down.

`make e2e-compose` runs run.py; it is no pytest module, as it needs a container engine and minutes.
"""
