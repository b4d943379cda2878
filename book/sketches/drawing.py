"""An SVG image: a white card with rounded corners, which reads well in a light and in a dark book."""

from html import escape

# Apart from each other also for those who do not see all colours (Okabe and Ito, 2008).
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, GREY = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b")
INK, RULE, PAPER = "#1f2328", "#c3c9d0", "#fff"
# Grounds below a text.
PALE_BLUE, PALE_ORANGE, PALE_GREEN, PALE_PINK, PALE_GREY = (
    "#d3e7f4", "#fbe0cd", "#cdece2", "#f4e0ec", "#eef0f3")
EDGES = {PALE_BLUE: BLUE, PALE_ORANGE: ORANGE, PALE_GREEN: GREEN, PALE_PINK: PINK, PALE_GREY: RULE, PAPER: RULE}
WHITE_ON = {BLUE, ORANGE, GREEN, GREY}
# One colour for each rank, and its ground.
RANKS = [BLUE, ORANGE, GREEN, PINK]
PALE_RANKS = [PALE_BLUE, PALE_ORANGE, PALE_GREEN, PALE_PINK]
# As wide as a page's text, so that no drawing is scaled beside another.
WIDTH = 640
LINE = 18


class Drawing:
    def __init__(self, name, height, width=WIDTH):
        self.name, self.width, self.height, self.parts, self.tips = name, width, height, [], {}

    def box(self, x, y, width, height, fill, text="", size=14, dash="", weight="normal", ink=None):
        """A rectangle with lines of text in its middle."""
        edge = EDGES.get(fill)
        stroke = f' stroke="{edge}"' if edge else ""
        stroke += f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
                          f'fill="{fill}"{stroke}/>')
        if text:
            ink = ink or (PAPER if fill in WHITE_ON else INK)
            lines = text.split("\n")
            top = y + height / 2 - LINE * (len(lines) - 1) / 2 + size * 0.35
            for place, line in enumerate(lines):
                self.text(x + width / 2, top + LINE * place, line, "middle", ink, size, weight)

    def frame(self, x, y, width, height, title):
        """What belongs together, such as a host, with its name at the top."""
        self.box(x, y, width, height, PAPER, dash="5 4")
        self.text(x + 10, y + 20, title, weight="bold")

    def text(self, x, y, text, anchor="start", ink=INK, size=14, weight="normal"):
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        more += "" if ink == INK else f' fill="{ink}"'
        more += "" if size == 14 else f' font-size="{size}"'
        more += "" if weight == "normal" else f' font-weight="{weight}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>')

    def lines(self, x, y, text, anchor="start", ink=INK):
        for place, line in enumerate(text.split("\n")):
            self.text(x, y + LINE * place, line, anchor, ink)

    def line(self, *points, stroke=INK, tip=False, both=False, dash="", width=1.5):
        """Through points, which are x and y by turns; with a tip at its end, or at both."""
        marker = ""
        if tip or both:
            name = self.tips.setdefault(stroke, f"tip{len(self.tips)}")
            marker = f' marker-end="url(#{name})"' + (f' marker-start="url(#{name})"' if both else "")
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        way = "M" + " ".join(f"{point:.1f}" for point in points)
        self.parts.append(f'<path d="{way}" fill="none" stroke="{stroke}" stroke-width="{width}"{dashes}{marker}/>')

    def legend(self, x, y, entries, step=None):
        """Small squares, each with its meaning, from left to right."""
        for colour, meaning in entries:
            self.box(x, y - 12, 14, 14, colour)
            self.text(x + 20, y, meaning)
            x += step or 44 + 8 * len(meaning)

    def svg(self):
        tips = "".join(f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" '
                       f'markerHeight="10" markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
                       f'<path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
                       for colour, name in self.tips.items())
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" font-family="Arial, Helvetica, sans-serif" '
                f'font-size="14" fill="{INK}">\n<rect width="{self.width}" height="{self.height}" rx="10" '
                f'fill="{PAPER}"/>\n<defs>{tips}</defs>\n{body}\n</svg>\n')

    def write(self, folder):
        (folder / f"{self.name}.svg").write_text(self.svg())
