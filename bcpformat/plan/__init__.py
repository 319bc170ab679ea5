"""Pure decisions: where bytes go in data files, and which bytes a read needs."""
