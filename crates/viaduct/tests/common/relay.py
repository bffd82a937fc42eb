# Program for an upgrade: becomes `viaduct`, with a relay between `viaduct` and the old process.
#
#   old process ◀── s ──▶ relay ◀── ours, theirs ──▶ viaduct, a child of the old process
#
# Before the relay passes on a message that begins with `awaited`, it calls `action`. The variables
# `awaited`, `action`, `viaduct` (the path) and `s` are set before this code runs.
import os, select, signal, socket, sys, time

old, new = os.getppid(), os.getpid()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
with open(sys.argv[0] + '.pid', 'w') as file:
    file.write(str(new))
child = os.fork()
if child:
    os.waitpid(child, 0)
    s.close()
    os.set_inheritable(theirs.fileno(), True)
    words = [word for word in sys.argv[1:] if not word.startswith('--takeover=')]
    os.execv(viaduct, [viaduct, *words, f'--takeover={theirs.fileno()}'])
# The relay is not a child of viaduct, because viaduct would not reap it.
if os.fork():
    os._exit(0)
theirs.close()

# Kills a process, and returns once it has ended.
def kill(pid):
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([ended], [], [])

# Creates a file, and returns once another process has removed it.
def hold():
    held = sys.argv[0] + '.held'
    open(held, 'w').close()
    while os.path.exists(held):
        time.sleep(0.01)

def pass_on(source, target):
    data, fds, _, _ = socket.recv_fds(source, 99999, 253)
    if not data:
        sys.exit()
    if data.startswith(awaited):
        action()
    socket.send_fds(target, [data], fds)
    for fd in fds:
        os.close(fd)

try:
    while True:
        for source in select.select([s, ours], [], [])[0]:
            pass_on(source, ours if source is s else s)
except OSError:
    # One of the processes has ended.
    sys.exit()
