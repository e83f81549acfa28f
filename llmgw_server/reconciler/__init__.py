"""Doing it: the loop wakes, observes, plans and lets the executor apply the plan.

loop.py is the only owner of a pass; executor.py applies actions one by one and decides nothing;
routes.py turns the fleet into the gateway's table; probe.py asks engines on silent nodes.
"""
