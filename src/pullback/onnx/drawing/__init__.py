"""A training graph for readers: as a table, and as a picture with the forward nodes on the left and their backward nodes beside them."""
