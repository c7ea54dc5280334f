"""Corpus, server and measuring of the builder's benchmark; other benchmarks import them from here."""
