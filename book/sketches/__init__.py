"""The drawings of the book, by subject. `book/figures` makes the files."""
