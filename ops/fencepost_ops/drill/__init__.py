"""Drills: one fault protocol, one process, real Postgres, virtual time; one seed gives one history."""
