"""The server's end of the control channel.

endpoint.py moves bytes, session.py is the protocol (sans-IO), hub.py owns the live session of every
node and feeds the fleet registry. Agents open the connections; the server never dials a node.
"""
