"""`llmgw demo`: everything on this machine, with a real engine and a real model.

story.py is what happens in order; processes.py starts and ends the programs (it never imports
them); catalogs.py holds the two catalogs; progress.py shows a start as it goes.
"""
