"""An epoch begun by some ranks and ended by others, each a process of its own: does every sample come exactly once?

usage: python -m peers.elastic SPEC, a JSON object; prints one. BEFORE ranks read half of the global batches and save their state; AFTER
ranks go on from it. The global batch stays the same.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
from pathlib import Path

from peers import formats
from peers.samples import Sink

BEFORE, AFTER, GLOBAL_BATCH = 2, 3, 48


def rank(contender, folder, number, world, port, half, states, pipe):
    """What one rank reads: its order, and its state after `half` global batches, or how it failed."""
    os.environ.update(RANK=str(number), WORLD_SIZE=str(world), LOCAL_RANK=str(number), LOCAL_WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    batch = GLOBAL_BATCH // world
    sink, state = Sink(), None
    try:
        if contender.distributed:
            import torch.distributed

            torch.distributed.init_process_group("gloo")
        contender.open(folder, True, number, world, batch)
        if states:
            contender.load_of([pickle.loads(one) for one in states])
        for ids, patches in contender.iterate():
            sink.take(ids, patches)
            if half and len(sink.order) == half * batch:
                state = pickle.dumps(contender.save())
                break
        pipe.send((sink.order, state, None))
    except Exception as error:
        pipe.send((sink.order, None, "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:200])))
    # Whoever ends first would take what others still need along: all are ended together.
    signal.pause()


def group(contender, folder, world, half=None, states=None):
    """`world` ranks -> what each read; only that of the one that failed, if one did, because others may wait for it."""
    context = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks, pipes, found = [], [], []
    for number in range(world):
        ours, theirs = context.Pipe(duplex=False)
        ranks.append(context.Process(target=rank, args=(contender, folder, number, world, port, half, states, theirs)))
        ranks[-1].start()
        theirs.close()
        pipes.append(ours)
    while pipes and not (found and found[-1][2]):
        pipe = multiprocessing.connection.wait(pipes)[0]
        found.append(pipe.recv())
        pipes.remove(pipe)
    for process in ranks:
        process.kill()
        process.join()
    return found[-1:] if found[-1][2] else found


def run(spec):
    contender, folder = formats.contender(spec["format"]), Path(spec["folder"])
    if contender.elastic:
        return {"unsupported": contender.elastic}
    first = group(contender, folder, BEFORE, half=spec["records"] // GLOBAL_BATCH // 2)
    states = [state for _, state, _ in first]
    rest = group(contender, folder, AFTER, states=states) if all(states) else []
    raised = [error for _, _, error in first + rest if error]
    if raised:
        return {"unsupported": "raises `%s`" % raised[0]}
    order = [number for part, _, _ in first + rest for number in part]
    return {"samples": len(order), "distinct": len(set(order)), "before": sum(len(part) for part, _, _ in first), "wrong": 0}


if __name__ == "__main__":
    print("\n" + json.dumps(run(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)
