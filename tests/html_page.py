"""An HTML page, taken apart for tests."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br", "img", "link", "input", "wbr"}


class Page(HTMLParser):
    """Tables as rows of texts, headings, texts and styles of the plots, and everything that would leave the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.headings: list[str] = []
        self.figures: dict[str, list[str]] = {}
        self.styles: dict[str, list[str]] = {}
        self.elements: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self._table: list[list[str]] = []
        self._figure: str | None = None
        self._depth = 0
        self.feed(text)
        self.close()
        assert self._open == [], "an element was not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.add(tag)
        self.links += [v or "" for k, v in attrs if k in {"src", "href", "xlink:href", "action", "data", "srcset"}]
        self.links += [str(v) for k, v in attrs if k == "style" and "url(" in str(v) and "url(#" not in str(v)]
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "table":
            self._table = self.tables.setdefault(str(given["class"]) + "+" * (given["class"] in self.tables), [])
        if tag == "tr":
            self._table.append([])
        if tag in {"td", "th"}:
            self._table[-1].append("")
        if tag in {"h1", "h2", "h3"}:
            self.headings.append("")
        if tag == "g" and str(given.get("id")).startswith("panel-"):
            self._figure, self._depth = str(given["id"])[6:], len(self._open)
            self.figures.setdefault(self._figure, [])
            self.styles.setdefault(self._figure, [])
        if self._figure:
            self.styles[self._figure].append(f"{tag} {given.get('style')}".lower())
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if len(self._open) == self._depth:
            self._figure = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self._open):
            self._table[-1][-1] += data
        elif {"h1", "h2", "h3"} & set(self._open):
            self.headings[-1] += data
        elif self._figure and "text" in self._open:
            self.figures[self._figure].append(data.strip())

    def row(self, table: str, first: str) -> list[str]:
        (row,) = (row[1:] for row in self.tables[table] if row[0] == first)
        return row
