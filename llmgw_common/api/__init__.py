"""The admin API as both sides see it: models.py (bodies), problem.py (errors), client.py."""
