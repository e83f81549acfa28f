"""The admin API under /api/v1: a thin edge, one file a resource; no rule and no SQL here.

api.py assembles it, ports.py says what it needs of the rest, roles.py who may call what, views.py
turns values into what is shown, problem.py turns errors into problem documents.
"""
