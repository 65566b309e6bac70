"""An operator that reports its environment, and one that raises what libraries raise."""

from __future__ import annotations

# Each event asks one question; the answer is text.
FINDS = """
import datetime, getpass, multiprocessing, os, pwd, signal, socket, ssl, subprocess, sys, time
from pathlib import Path
from udo_runtime import operator

at_import = getpass.getuser()  # as libraries do that look for a place to keep things in

def hours_ahead():
    now = datetime.datetime.now
    return round((now() - now(datetime.UTC).replace(tzinfo=None)).total_seconds() / 3600)

def ends_at_sigterm(kind):
    child = multiprocessing.get_context(kind).Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(0.5)
    child.terminate()
    child.join(20)
    return child.exitcode

def ends_at_interrupt():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    child.send_signal(signal.SIGINT)
    return child.wait(20)

def ends_before_anything():
    if (pid := os.fork()) == 0:
        time.sleep(20)
        os._exit(1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def ignored_signals():
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    return [int(n) for n in sorted(signal.valid_signals()) if ignored >> n - 1 & 1]  # the others are the C library's own

def child_answers():
    # of a forked process with a handler of its own, which its child has too
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
        if (own := os.fork()) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(6)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def forked_exits():
    if (pid := os.fork()) == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def forked_returns():
    if (pid := os.fork()) == 0:
        return "a second answer"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def home():
    place = Path.home() / f"kept-{os.getpid()}"
    place.write_text("x")
    place.unlink()
    return str(Path.home()) == os.path.expanduser("~")

ASKED = {
    "forked ends": lambda: ends_at_sigterm("fork"),
    "forked ends at once": lambda: {ends_before_anything() for _ in range(200)},
    "ignored signals": ignored_signals,
    "child answers": child_answers,
    "spawned ends": lambda: ends_at_interrupt(),
    "forked exits": forked_exits,
    "forked returns": forked_returns,
    "user": lambda: [at_import, getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, os.environ["USER"], os.environ["LOGNAME"]],
    "home": home,
    "authorities": lambda: len(ssl.create_default_context().get_ca_certs()),
    "services": lambda: socket.getservbyname("https"),
    "hours": hours_ahead,
    "local": lambda: time.localtime(0).tm_hour,
    "hash": lambda: hash("card"),
}

@operator
def run(batch):
    return {"answer": [repr(ASKED[asked]()) for asked in batch.column("asked").to_pylist()]}
"""
SCHEMAS = {"input": {"asked": "string"}, "output": {"answer": "string"}}
# Exceptions of user code that do not derive from Exception.
RAISES = """
import asyncio, sys
from udo_runtime import Operator
class Panic(BaseException):
    pass
def generator():
    raise GeneratorExit("as a generator that is closed")
RAISED = {13: lambda: asyncio.CancelledError("as of a cancelled task"), 14: lambda: Panic("as of a native extension"),
          15: lambda: SystemExit("as of argparse"), 16: lambda: KeyboardInterrupt("as of Ctrl-C"), 17: lambda: GeneratorExit("closed")}
class Run(Operator):
    def process(self, event, ctx):
        if event["a"] in RAISED: raise RAISED[event["a"]]()
        yield {"b": event["a"]}
"""
# The exception that each of its events raises, in the words of its failure.
RAISED = {
    13: "CancelledError: as of a cancelled task",
    14: "Panic: as of a native extension",
    15: "SystemExit: as of argparse",
    16: "KeyboardInterrupt: as of Ctrl-C",
    17: "GeneratorExit: closed",
}
