"""The HTTP interface: runs, their events, signals and cancels for producers that speak neither Python nor
SQL to the ledger.

It decides nothing: every request is one short piece of work on the ledger, under a login of its own. It keeps
no state either, so that any number of these processes may run side by side, and be killed at any time.
"""
