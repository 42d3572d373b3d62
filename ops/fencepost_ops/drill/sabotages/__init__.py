"""The defences that can be switched off: by decisions, by processes, and by the guards inside Postgres."""
