"""Parses a page's HTML, for tests of the pages."""

from __future__ import annotations

from html.parser import HTMLParser

VOID_TAGS = {"meta", "link", "img", "br", "hr", "input", "wbr", "path", "use", "rect"}


class Outline(HTMLParser):
    """The content of a page: tags in order, ids, links, and texts by tag and class."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the start of an element."""
        known = dict(attrs)
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if value is not None
                       and name in ("href", "src", "xlink:href", "action", "data", "srcset")]
        name = f"{tag}.{(known.get('class') or '').partition(' ')[0]}"
        self.inside.setdefault(name, []).append("")
        if tag not in VOID_TAGS:
            self.open.append((tag, name))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element without content."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID_TAGS:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Check that an end tag closes the innermost element."""
        if tag in VOID_TAGS:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        """Add a text to every element around it."""
        for _, name in self.open:
            self.inside[name][-1] += data

    def texts(self, name: str) -> list[str]:
        """Return the words of every element of this tag and first class."""
        return [" ".join(text.split()) for text in self.inside.get(name, [])]
