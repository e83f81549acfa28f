"""What to do: a pure function from catalog, fleet, demand and time to a plan of typed actions.

planner.py shows the order of the pass; each step has a file of its own. No I/O, no clock, no log.
"""
