"""The life of shards on this machine: install, fetch, launch, await ready, watch; stop; adopt.

supervisor.py owns them all and answers commands; task.py walks one shard through its steps.
shard.py is the status (pure); record.py what survives the agent; processes.py what /proc knows;
launch.py and stop.py begin and end process groups; exits.py reads why one ended.
"""
