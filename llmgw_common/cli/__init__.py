"""The operator's `llmgw`: a client of the REST admin API and nothing else.

main.py puts the commands together; commands/ holds one file a group; caller.py knows which server
and key are meant; tables.py says what is shown of each thing and output.py how (table, json, yaml);
live.py follows what goes on; demo/ runs a whole fleet on this machine.
"""
