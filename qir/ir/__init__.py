"""What a program is: types, ops, graphs, their text and files, and what may be said of them."""
