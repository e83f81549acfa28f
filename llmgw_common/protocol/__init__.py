"""The control channel's words: what server and agent say to each other over one websocket.

messages.py holds the messages, codec.py turns them into bounded JSON text frames and back, and
facts.py describes a node and its shards. Both ends' session machines and the simulation use these.

Rules: unknown message types and unknown fields are ignored and counted, so version N and N-1 talk.
Durations and ages cross the wire, never instants: the two clocks need not agree.
"""
