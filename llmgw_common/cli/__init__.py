"""`llmgw`, the operator's command line: a client of the admin API and nothing else.

main.py assembles it; contexts.py knows which server and key; session.py turns errors into words and
exit codes; output.py prints; text.py makes foreign text safe; commands/ has one file a group; demo/
starts everything on this machine. Nobody imports this package.

Exit codes: 0 done, 1 it failed, 2 bad input (nothing was changed), 3 the server cannot be reached,
4 the key is not good for this, 5 there is no such thing.
"""
