"""The Celery fleet: planner, dispatcher, reconciler and compensator."""
