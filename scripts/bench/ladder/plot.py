"""The ladder's two pictures, written as SVG by hand: when the GPU was busy, and how much of the time was waited."""

WIDTH, LEFT, ROW = 760, 170, 34
BUSY, IDLE, LINE = "#1b7837", "#f4d7d3", "#b2182b"
SECONDS = 60


def picture(height, body):
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">\n'
            '<rect width="100%%" height="100%%" fill="white"/>\n%s\n</svg>\n' % (LEFT + WIDTH + 70, height, "\n".join(body)))


def text(x, y, words, more=""):
    return '<text x="%.1f" y="%.1f" %s>%s</text>' % (x, y, more, words)


def box(x, y, width, height, colour):
    return '<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="%s"/>' % (x, y, width, height, colour)


def timeline(rows):
    """A strip for each rung: green while it trains, pale while it waits."""
    scale = WIDTH / SECONDS
    body = [text(LEFT, 18, "GPU busy (green) and waiting (pale) in the first %d s" % SECONDS, 'font-weight="bold"')]
    for place, r in enumerate(rows):
        y = 30 + place * ROW
        body.append(text(LEFT - 8, y + 15, r["rung"], 'text-anchor="end"'))
        body.append(box(LEFT, y, min(SECONDS, r["busy"][-1][1]) * scale, ROW - 12, IDLE))
        for since, until in r["busy"]:
            if since < SECONDS:
                body.append(box(LEFT + since * scale, y, (min(until, SECONDS) - since) * scale, ROW - 12, BUSY))
    y = 30 + len(rows) * ROW
    body += [text(LEFT + at * scale, y + 8, "%d s" % at, 'text-anchor="middle"') for at in range(0, SECONDS + 1, 10)]
    return picture(y + 20, body)


def ratios(rows, floor):
    """A bar for each rung."""
    body = [text(LEFT, 18, "waiting for data, %% of the time (floor for Stoker: %g %%)" % (100 * floor), 'font-weight="bold"')]
    for place, r in enumerate(rows):
        y, width = 30 + place * ROW, r["wait_ratio"] * WIDTH
        body += [text(LEFT - 8, y + 15, r["rung"], 'text-anchor="end"'), box(LEFT, y, max(width, 0.5), ROW - 12, LINE),
                 text(LEFT + width + 6, y + 15, "%.2f %%" % (100 * r["wait_ratio"]))]
    return picture(30 + len(rows) * ROW + 10, body)
