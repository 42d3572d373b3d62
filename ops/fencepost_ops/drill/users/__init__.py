"""Drills of users' own tools, against their own fake downstreams: what the pytest plugin stands on."""
