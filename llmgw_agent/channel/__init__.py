"""The agent's end of the control channel.

session.py is the protocol (sans-IO), connection.py the socket and the way back after every end,
commands.py what a command does, credential.py what the node keeps of its identity.
"""
