"""The ablation as one SVG: a bar a point, its rate; a tick on it, what a CPU second gives."""

from ladder.plot import LEFT, LINE, ROW, WIDTH, box, picture, text
from scale import points

WALL, LEAD = "#7b9fc7", 60


def bars(sections, row_of):
    """GB/s as bars and GB per CPU-second as ticks, a group for each section."""
    measured = [row_of(one) for _, _, chosen in sections for one in chosen]
    most = max([max(r["gb_s"], r["gb_cpu_s"]) for r in measured if "failed" not in r], default=1)
    scale, left, y = (WIDTH - LEAD - 60) / most, LEFT + LEAD, 18
    body = [text(left, y, "GB/s (bar) and GB per CPU-second (tick)", 'font-weight="bold"')]
    for title, names, chosen in sections:
        y += ROW
        body.append(text(left, y, title, 'font-weight="bold"'))
        for one in chosen:
            r = row_of(one)
            y += ROW // 2 + 3
            body.append(text(left - 8, y, points.label(names, one), 'text-anchor="end"'))
            if "failed" in r:
                body.append(text(left, y, "fails", 'fill="%s"' % LINE))
                continue
            body += [box(left, y - 11, max(0.5, r["gb_s"] * scale), 13, WALL), box(left + r["gb_cpu_s"] * scale, y - 13, 2, 17, LINE),
                     text(left + max(r["gb_s"], r["gb_cpu_s"]) * scale + 8, y, "%.1f" % r["gb_s"])]
    return picture(y + 20, body)
