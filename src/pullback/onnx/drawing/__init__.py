"""A training graph for readers, as a table and as a picture: the forward nodes, and beside each its backward nodes."""
