"""What this machine has: host, GPUs, or made-up GPUs for a simulated node.

facts.py puts it together. gpu_reader.py runs nvml.py as a program of its own, because a driver
call that hangs can neither be cancelled nor given up inside this process.
"""
