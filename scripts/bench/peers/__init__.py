"""The same samples in the formats of others and in Stoker's, written, read, shuffled and resumed."""
