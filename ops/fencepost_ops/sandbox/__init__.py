"""Downstream services for demos, drills and tests, with a durable book of their own and faults on request.

Independent of everything they are meant to judge: nothing here imports the kernel, the workers or the relay.
"""
