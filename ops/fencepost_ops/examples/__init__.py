"""Example applications: what a user writes."""
