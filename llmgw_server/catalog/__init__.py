"""What is wanted: the catalog in force and its revisions. revisions.py is the whole story."""
