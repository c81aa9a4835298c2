"""A Python with torch and other modules preloaded: a server that has imported them forks for each start.

python forked_python.py serve SOCKET OWNER MODULES...  serves as long as the process with the id OWNER lives
python -IS forked_python.py start SOCKET WORDS...      does what `python WORDS...` does, with its open files and signals
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def start(path: str, words: list[str]) -> None:
    """Have the server fork, pass signals on, and end as the forked process does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # pathlib takes as long as all else here.
    files = [number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")]  # noqa: PTH110, PTH208
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        task = json.dumps([words, dict(os.environ), os.getcwd(), files]).encode()  # noqa: PTH109
        socket.send_fds(server, [len(task).to_bytes(4, "big")], files)
        server.sendall(task)
        answers = server.makefile()
        process = int(answers.readline())
        if words[:2] == ["-m", "accelerate.commands.launch"] and not os.fork():
            answers.close()
            server.close()  # the server sees by it whether this process lives
            pass_to_children(process)
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = int(answers.readline() or -signal.SIGKILL)
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def pass_to_children(process: int) -> None:
    """As the child of an accelerate that launch/node.sh signals, stand for those of the forked one, while it lives."""

    def pass_on(number: int, _: object) -> None:
        with open(f"/proc/{process}/task/{process}/children") as children:  # noqa: PTH123
            for child in children.read().split():
                os.kill(int(child), number)

    signal.signal(signal.SIGUSR1, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while os.path.exists(f"/proc/{process}"):  # noqa: PTH110
        select.select([], [], [], 0.1)
    os._exit(0)


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
                size, files, _, _ = socket.recv_fds(client, 4, 253)  # as many as Linux passes on
                task = json.loads(client.makefile("rb").read(int.from_bytes(size, "big")))
                if process := os.fork():
                    processes[client] = process
                    client.sendall(f"{process}\n".encode())
                    for file in files:
                        os.close(file)
                else:
                    for one in (listener, client, *processes):
                        one.detach()  # else it closes, once it is garbage, whatever has its number by then
                    become(files, *task[1:])
                    return task[0]
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


def become(files: list[int], environment: dict[str, str], folder: str, numbers: list[int]) -> None:
    """Take what a process has from whoever starts it, and start others with the same Python."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    files = [fcntl.fcntl(file, fcntl.F_DUPFD, 512) for file in files]  # out of the way of their own numbers
    os.closerange(0, 512)
    for number, file in zip(numbers, files, strict=True):
        os.dup2(file, number)
    os.closerange(512, 1024)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.executable = environment.get("PYTHON_EXEC", sys.executable)
    multiprocessing.spawn.set_executable(sys.executable)
    multiprocessing.process.ORIGINAL_DIR = folder


def run(words: list[str]) -> None:
    """Do what `python WORDS...` does, as the main module."""
    import runpy

    while words[0][0] == "-" and words[0] not in ("-c", "-m"):  # -u, and what multiprocessing passes on
        if words.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
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


def leave(status: int) -> None:
    """End as Python does, but for its modules, which it would take apart for seconds, each page copied by the fork."""
    threading._shutdown()
    atexit.unregister(gc.unfreeze)
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    task, socket_path, *rest = sys.argv[1:]
    if task == "start":
        start(socket_path, rest)
    del sys.path[0]
    import atexit
    import fcntl
    import gc
    import importlib.metadata
    import multiprocessing.spawn
    import threading
    from functools import cache
    from importlib import import_module

    owner, *modules = rest
    gc.disable()
    for name in modules:
        import_module(name)
    gc.freeze()  # what is imported is not searched for garbage again in each fork
    gc.enable()
    # accelerate asks again for every trainer, and for every step, whether a package is there.
    importlib.metadata.metadata = cache(importlib.metadata.metadata)
    if broadcast := sys.modules.get("vllm.distributed.device_communicators.shm_broadcast"):
        # Its processes wait for one another asleep, instead of spinning for a second after each message.
        broadcast.SpinCondition.__init__.__defaults__ = (0.001,)
        cpu = sys.modules["vllm.platforms.cpu"]
        # Each engine fills the least cache that can be asked for, a GiB, with zeros, and looks through all modules for
        # what it replaces: half a CPU second each.
        cpu.GiB_bytes = 2**26  # type: ignore[attr-defined]
        cpu.CpuPlatform.register_triton_kernel_overrides()
        cpu.CpuPlatform.register_triton_kernel_overrides = lambda *_: None
        # Each also compiles a function of one line, which ranks log-probabilities, and as its processes end, they look
        # for garbage in all that was imported: a second each.
        sys.modules["torch"].compiler.set_stance("force_eager")
        atexit.unregister(gc.unfreeze)
        gc.unfreeze = lambda: None
    if rendezvous := sys.modules.get("torch.distributed.elastic.rendezvous.dynamic_rendezvous"):
        # For its log torchrun asks who calls, again and again, and `inspect` goes through all modules for it.
        rendezvous.get_method_name = lambda depth=2: "unknown"
    with suppress(
        ImportError
    ):  # it can look for the title's place in memory only as long as the environment is as it was
        import setproctitle

        setproctitle.getproctitle()
    words = serve(socket_path, int(owner))
    status = 0
    try:
        run(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if status != ended.code and ended.code is not None:
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    leave(status)
