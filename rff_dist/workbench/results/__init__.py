"""What a result says: its facts and tables, which terminal, page and Prefect share."""
