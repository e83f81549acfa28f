"""What is: nodes, GPUs, replicas and shards as the agents report them. Pure.

model.py holds the frozen values, replica_state.py derives a replica's state, registry.py is the one
writer (reports and decisions in, a new FleetView out), adoption.py rebuilds replicas from reports,
book.py books GPUs and ports within one planning pass. Nothing here does I/O or reads a clock.
"""
