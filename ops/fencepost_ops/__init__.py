"""What an operator and a tester run: the command line, local servers, drills and the checker."""
