"""Just enough of S3 to be measured against: whole objects and ranges from a folder, each answer late by a given time.

Usage: server.py FOLDER DELAY_MS. Prints its endpoint and two keys, which it does not check. The servers of the tests do
check, and would themselves be the slowest part.
"""

import asyncio
import hashlib
import os
import sys

MISSING = b"<Error><Code>NoSuchKey</Code></Error>"


def answer(root, method, path, wanted):
    """-> head and body. `wanted` is the Range header or None."""
    name = os.path.normpath(root + "/" + path.lstrip("/"))
    if not name.startswith(root + "/") or not os.path.isfile(name):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(MISSING), b"" if method == "HEAD" else MISSING
    size = os.path.getsize(name)
    first, last, status, extra = 0, size - 1, b"200 OK", b""
    if wanted:
        first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
        last = min(last, size - 1)
        status, extra = b"206 Partial Content", b"Content-Range: bytes %d-%d/%d\r\n" % (first, last, size)
    head = b"HTTP/1.1 %s\r\nETag: \"%s\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n%sContent-Length: %d\r\n\r\n" % (
        status, hashlib.md5(path.encode()).hexdigest().encode(), extra, last - first + 1)
    if method == "HEAD":
        return head, b""
    with open(name, "rb") as file:
        file.seek(first)
        return head, file.read(last - first + 1)


async def serve(root, delay_s, reader, writer):
    """All requests of one connection."""
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ")
            wanted = next((line[6:].strip() for line in lines if line.lower().startswith("range:")), None)
            await asyncio.sleep(delay_s)
            for part in answer(root, method, target.partition("?")[0], wanted):
                writer.write(part)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    root, delay_s = os.path.abspath(sys.argv[1]), float(sys.argv[2]) / 1000
    server = await asyncio.start_server(lambda r, w: serve(root, delay_s, r, w), "127.0.0.1", 0)
    print("http://127.0.0.1:%d key secret" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
