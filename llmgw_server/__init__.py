"""The control plane and the gateway: catalog, planner, reconciler, agent channel, admin API, /v1.

Read app.py first: it builds each object once and shows how the three paths meet.
"""

__version__ = "0.1.0"
