"""What each command does: pure functions from a fold (the state under the locks) to events and an answer."""
