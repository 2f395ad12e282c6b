"""Models of data that change: rows that came and went, updates, the gate, drift, merging."""
