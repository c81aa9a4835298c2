"""Python with torch, transformers and TRL imported already: a server that has imported them forks for each start.

python forked_python.py serve SOCKET OWNER         serves as long as the process with the id OWNER lives
python -IS forked_python.py start SOCKET WORDS...  does what `python WORDS...` does, with its input, output and signals
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

PROGRAMS = ("cli", "train", "evaluate", "steer")
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def start(path: str, words: list[str]) -> None:
    """Have the server fork, pass signals on, and end as the forked process does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        task = json.dumps([words, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109  (pathlib takes as long as all else here)
        socket.send_fds(server, [len(task).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(task)
        answers = server.makefile()
        process = int(answers.readline())
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = int(answers.readline() or -signal.SIGKILL)
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(path: str, owner: int) -> list[str]:
    """Fork for each that connects, until the owner is gone; return the words, in the forked process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    processes: dict[socket.socket, int] = {}
    while os.path.exists(f"/proc/{owner}"):  # noqa: PTH110
        for client in select.select([listener, woken, *processes], [], [], 1)[0]:
            if client is listener:
                client, _ = listener.accept()
                size, files, _, _ = socket.recv_fds(client, 4, 3)
                words, environment, folder = json.loads(client.makefile("rb").read(int.from_bytes(size, "big")))
                if process := os.fork():
                    processes[client] = process
                    client.sendall(f"{process}\n".encode())
                    for file in files:
                        os.close(file)
                else:
                    become(files, environment, folder)
                    return words
            elif client is woken:
                os.read(woken, 4096)
                report_ended(processes)
            elif client in processes:  # whoever has started it was killed
                os.kill(processes[client], signal.SIGKILL)
    os._exit(0)


def report_ended(processes: dict[socket.socket, int]) -> None:
    """Tell those that wait for a process that has ended its status."""
    for client, process in list(processes.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del processes[client]
            with client, suppress(OSError):
                client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(files: list[int], environment: dict[str, str], folder: str) -> None:
    """Take what a process has from whoever starts it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, file in enumerate(files):
        os.dup2(file, place)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def run(words: list[str]) -> None:
    """Do what `python WORDS...` does, as the main module."""
    import runpy

    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        words = words[1:]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [place for place in places if place and place not in sys.path]
    sys.argv = words
    if words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    elif words[0] == "-m":
        sys.path.insert(0, "")
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))  # noqa: PTH100, PTH120
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    task, socket_path, *rest = sys.argv[1:]
    if task == "start":
        start(socket_path, rest)
    del sys.path[0]
    from importlib import import_module

    from think_as_locals.runtime.startup import loading

    with loading():
        for name in (
            "accelerate.commands.launch",
            "torch.distributed.run",
            *map("think_as_locals.{}".format, PROGRAMS),
        ):
            import_module(name)
    run(serve(socket_path, int(rest[0])))
