"""The simulated engine: a real HTTP server in its own process that stands for an inference engine.

For tests, demos and capacity rehearsals. `python -m llmgw_agent.engines.simulated --help`
lists what can be scripted: load time, token rate, failures, hangs.
"""
