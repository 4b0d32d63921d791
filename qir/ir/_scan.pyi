class Scanner:
    """Where reading stands in a text; what is looked for stands behind white space and comments."""

    def __init__(self, text: str) -> None: ...
    @property
    def text(self) -> str: ...
    at: int
    """Where; ValueError for a place outside the text."""
    def skip(self) -> None:
        """Passes white space and comments."""

    @property
    def done(self) -> bool:
        """Whether nothing is left."""

    def peek(self, mark: str) -> bool:
        """Whether the mark stands next."""

    def take(self, mark: str) -> bool:
        """Passes the mark if it stands next."""

    def take_word(self, word: str) -> bool:
        """Passes the word if it stands next and ends there."""

    def at_number(self) -> bool:
        """Whether a number stands next."""

    def find_word(self) -> str | None:
        """Passes a word of letters, digits, `_`, `.` and `-`; None where none stands next."""

    def find_identifier(self) -> str | None:
        """Passes a word of letters, digits and `_`; None where none stands next."""

    def find_name(self) -> str | None:
        """Passes identifiers joined by points that stand here, behind no space."""

    def find_number(self) -> str | None:
        """Passes a number; None where none stands next."""

    def find_string(self) -> str | None:
        """Passes a text with its quotes, on one line; None where none stands next."""
