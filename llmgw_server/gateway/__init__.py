"""The request path: key -> model -> replica -> engine's bytes back -> usage booked.

Read core.py: the story in order. gateway.py owns the parts; asgi.py is the thin edge to HTTP.
Nothing here knows the control plane: routes and keys come in as immutable snapshots.
"""
