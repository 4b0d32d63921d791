# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: freethreading_compatible=True
"""The compiled part of reading text: what stands next, and where it ends; see `lexer.py`."""


cdef class Scanner:
    """A position in a text; tokens are looked for after white space and comments."""

    cdef readonly str text
    cdef Py_ssize_t place
    cdef Py_ssize_t size

    def __init__(self, str text not None):
        self.text = text
        self.size = len(text)
        self.place = 0

    @property
    def at(self):
        return self.place

    @at.setter
    def at(self, Py_ssize_t place):
        if not 0 <= place <= self.size:
            raise ValueError(f"{place} is no place in a text of {self.size} letters")
        self.place = place

    def skip(self):
        """Passes white space and comments."""
        self._skip()

    @property
    def done(self):
        self._skip()
        return self.place >= self.size

    def peek(self, str mark not None):
        """Whether the mark stands next."""
        return self._stands(mark)

    def take(self, str mark not None):
        """Passes the mark if it stands next."""
        if not self._stands(mark):
            return False
        self.place += len(mark)
        return True

    def take_word(self, str word not None):
        """Passes the word if it stands next and ends there."""
        if not self._stands(word) or self._identifier_end() != self.place + len(word):
            return False
        self.place += len(word)
        return True

    def at_number(self):
        """Whether a number stands next."""
        self._skip()
        return self._number_end() > self.place

    def find_word(self):
        """Passes a word of letters, digits, `_`, `.` and `-`; None where none stands next."""
        self._skip()
        return self._pass(self._word_end())

    def find_identifier(self):
        """Passes a word of letters, digits and `_`; None where none stands next."""
        self._skip()
        return self._pass(self._identifier_end())

    def find_name(self):
        """Skips identifiers joined by points at this position, without white space."""
        return self._pass(self._name_end())

    def find_number(self):
        """Passes a number; None where none stands next."""
        self._skip()
        return self._pass(self._number_end())

    def find_string(self):
        """Passes a text with its quotes, on one line; None where none stands next."""
        self._skip()
        return self._pass(self._string_end())

    cdef void _skip(self):
        cdef Py_UCS4 letter
        while self.place < self.size:
            letter = self.text[self.place]
            if letter == u"#" or (letter == u"/" and self._letter(self.place + 1) == u"/"):
                while self.place < self.size and self.text[self.place] != u"\n":
                    self.place += 1
            elif letter in u" \t\r\n":
                self.place += 1
            else:
                return

    cdef bint _stands(self, str mark):
        cdef Py_ssize_t i
        self._skip()
        if len(mark) > self.size - self.place:
            return False
        for i in range(len(mark)):
            if self.text[self.place + i] != mark[i]:
                return False
        return True

    cdef Py_UCS4 _letter(self, Py_ssize_t place):
        return self.text[place] if place < self.size else 0

    cdef _pass(self, Py_ssize_t end):
        if end == self.place:
            return None
        cdef str found = self.text[self.place:end]
        self.place = end
        return found

    cdef bint _is_word(self, Py_ssize_t place):
        cdef Py_UCS4 letter = self._letter(place)
        return letter.isalnum() or letter == u"_"

    cdef Py_ssize_t _identifier_end(self):
        cdef Py_ssize_t end = self.place
        cdef Py_UCS4 letter = self._letter(end)
        if u"a" <= letter <= u"z" or u"A" <= letter <= u"Z" or letter == u"_":
            while self._is_word(end):
                end += 1
        return end

    cdef Py_ssize_t _name_end(self):
        cdef Py_ssize_t end = self._identifier_end()
        while end > self.place and self._letter(end) == u"." and self._is_word(end + 1):
            end += 1
            while self._is_word(end):
                end += 1
        return end

    cdef Py_ssize_t _word_end(self):
        cdef Py_ssize_t end = self._identifier_end()
        while end > self.place and (self._is_word(end) or self._letter(end) in u".-"):
            end += 1
        return end

    cdef Py_ssize_t _digits_end(self, Py_ssize_t end):
        while u"0" <= self._letter(end) <= u"9":
            end += 1
        return end

    cdef Py_ssize_t _number_end(self):
        """Reads a sign, then inf, nan, or decimals with an exponent; of `1..` only the 1."""
        cdef Py_ssize_t start = self.place, end, whole
        if self._letter(start) in u"+-":
            start += 1
        if self._letter(start) in u"in" and self.text[start:start + 3] in ("inf", "nan"):
            return start + 3
        end = whole = self._digits_end(start)
        if self._letter(whole) == u".":
            end = self._digits_end(whole + 1)
            if end == whole + 1 and whole > start and self._letter(end) == u".":
                return whole
        if end - start == (end > whole):  # no digit
            return self.place
        if self._letter(end) in u"eE":
            start = end + (2 if self._letter(end + 1) in u"+-" else 1)
            whole = self._digits_end(start)
            end = whole if whole > start else end
        return end

    cdef Py_ssize_t _string_end(self):
        cdef Py_ssize_t end = self.place + 1
        cdef Py_UCS4 letter
        if self._letter(self.place) != u'"':
            return self.place
        while end < self.size:
            letter = self.text[end]
            if letter == u'"':
                return end + 1
            if letter == u"\\":
                end += 1
                letter = self._letter(end)
            if letter == u"\n":
                break
            end += 1
        return self.place
