"""The text form: `print_graph` and `parse`, and the table of arrays that the text names."""

from qir.ir.parser import parse
from qir.ir.printer import array_table, print_graph
from qir.ir.typetext import parse_type

__all__ = ["array_table", "parse", "parse_type", "print_graph"]
