"""The public ops: each validates its arguments, builds one Problem and dispatches it."""
