"""Engines: one small file a kind says how to launch it and how to know that it serves.

adapter.py is the Protocol that each kind meets and the registry of kinds; installs.py brings
programs onto the machine; simulated/ is a real HTTP server that stands for an engine.
"""
