"""Writes docs/reference/ from the code: `make reference`. A test fails when the two differ.

One module a kind of page; each has functions that return Markdown. No page is edited by hand.
"""
