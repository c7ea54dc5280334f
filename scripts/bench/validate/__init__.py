"""Whether `stoker simulate` foretells what is measured."""
