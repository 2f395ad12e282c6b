"""Models of data that change: new rows, updates, the gate, drift, merging."""
