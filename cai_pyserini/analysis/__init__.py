"""What a collection, an encoder and its runs are like: each module prints a table, writes JSON and a plot."""
