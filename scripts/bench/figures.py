# SPDX-License-Identifier: GPL-2.0
"""Plots drawn by gnuplot, with the scripts *.gp of this folder."""

import html
import os
import re
import subprocess

from rowfile import BadInput

# Readable on white and on black: by name, or else in turn
COLOURS = ("#3b82c4", "#d9772b", "#3a9d5d", "#b04bb8", "#c4453b", "#8a7a3a")
COLOUR_OF = {"populate-write": "#3a9d5d", "memcpy": "#b04bb8", "nofork": "#c4453b",
             "off": "#7a828c", "fixed": "#3b82c4", "adaptive": "#d9772b",
             "fixed-1": "#3b82c4", "fixed-15": "#3a9d5d"}

HERE = os.path.dirname(os.path.abspath(__file__))


def escape(text):
    return html.escape(str(text))


def colour_of(name, i):
    """The colour of the name up to a comma, or the next in turn."""
    return COLOUR_OF.get(name.split(",", maxsplit=1)[0], COLOURS[i % len(COLOURS)])


def quoted(value):
    """A value in gnuplot's syntax."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def gnuplot(script, folder, **settings):
    """Run a script *.gp in `folder`, with its variables set."""
    done = subprocess.run(["gnuplot", "-e", "; ".join(f"{key}={quoted(value)}" for key, value
                                                      in settings.items()),
                           os.path.join(HERE, script)],
                          cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"gnuplot: {done.stderr.strip()}")


class Plots:
    """Draws figures for a page with gnuplot, in a folder for its files."""

    def __init__(self, folder):
        self.folder = folder
        self.number = 0
        self.drawings = []

    def lines(self, kind, title, caption, xtext, ytext, series, dashed=()):
        """A figure; series and dashed are pairs of a name and (x, y) points."""
        every = list(series) + list(dashed)
        text = "".join(f'"{name}"\n' + "".join(f"{x} {y}\n" for x, y in points) + "\n\n"
                       for name, points in every)
        colours = [colour_of(name, i) for some in (series, dashed)
                   for i, (name, _) in enumerate(some)]
        style = {"window": "linespoints pointtype 7 pointsize 0.5", "cdf": "fsteps", "time": "lines"}
        return self.draw("lines.gp", text, title, caption, colours=" ".join(colours),
                         kind=kind, solid=len(series), style=style[kind], xtext=xtext, ytext=ytext,
                         xmax=max(x for _, points in every for x, _ in points))

    def bars(self, title, caption, ytext, groups_of_bars, names):
        """A figure; a group is a label and a value for each of the names."""
        lines = [" ".join(f'"{name}"' for name in ("", *names))]
        lines += [f'"{label}" {" ".join(map(str, values))}' for label, values in groups_of_bars]
        colours = [colour_of(name, i) for i, name in enumerate(names)]
        return self.draw("bars.gp", "\n".join(lines) + "\n", title, caption,
                         colours=" ".join(colours), ytext=ytext)

    def draw(self, script, data, title, caption, **settings):
        """The figure that the script makes of the text `data`."""
        self.number += 1
        path = os.path.join(self.folder, f"{self.number}.dat")
        out = os.path.join(self.folder, f"{self.number}.svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(data)
        gnuplot(script, self.folder, data=path, out=out, **settings)
        with open(out, encoding="utf-8") as file:
            drawing = self.inline(file.read(), title)
        self.drawings.append((title, drawing))
        return (f"<figure><strong>{escape(title)}</strong>"
                f"<figcaption>{escape(caption)}</figcaption>{drawing}</figure>")

    def inline(self, svg, title):
        """gnuplot's SVG as part of a page: ids are unique, black is the page's colour."""
        svg = svg[svg.index("<svg"):]
        svg = re.sub(r"<title>.*?</title>", "", svg, flags=re.S)
        svg = re.sub(r"\bgp(Pt\d+|Dot|Mark)", rf"gp{self.number}\1", svg)
        svg = re.sub(r'id="(gnuplot_[^"]*)"', rf'id="p{self.number}\1"', svg)
        svg = re.sub(r"""(fill|stroke) ?= ?(["'])black\2""", r'\1="currentColor"', svg)
        svg = re.sub(r"""\bcolor=(["'])black\1""", "", svg)
        svg = re.sub(r"rgb\( *0, *0, *0\)", "currentColor", svg)
        return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


#
# Plots for a README: several in one file, on white, as an image cannot follow the
# colours of the page that shows it.
#

PANEL = (560, 350)
TITLE_HEIGHT = 34


def panels(drawings, columns):
    """One SVG of several drawings."""
    width = columns * PANEL[0]
    height = -(-len(drawings) // columns) * (PANEL[1] + TITLE_HEIGHT)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
           f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" color="#1d2329">')
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for i, (title, drawing) in enumerate(drawings):
        x = i % columns * PANEL[0]
        y = i // columns * (PANEL[1] + TITLE_HEIGHT)
        yield (f'<text x="{x + PANEL[0] / 2}" y="{y + 24}" text-anchor="middle" '
               f'font-family="sans-serif" font-weight="bold" font-size="18">{escape(title)}</text>')
        place = f'<svg x="{x}" y="{y + TITLE_HEIGHT}" width="{PANEL[0]}" height="{PANEL[1]}"'
        yield drawing.replace("<svg", place, 1)
    yield "</svg>"
