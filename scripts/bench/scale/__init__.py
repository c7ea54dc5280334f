"""The ablation: each setting of the reader and of shards alone, and those together that may matter together."""
