needs() { echo python3; }

# A manager whose objects are used by pools of forked and of newly started processes.
setup() {
    cat >manager.py <<'END'
import sys
from multiprocessing.managers import BaseManager
class Words:
    def twice(self, word): return word * 2
class Manager(BaseManager): pass
Manager.register("words", Words)
def serve(port):
    Manager(("127.0.0.1", port), b"key").get_server().serve_forever()
END
    cat >pool.py <<'END'
import hashlib, multiprocessing, sys
from manager import Manager
def work(n):
    manager = Manager(("127.0.0.1", int(sys.argv[1])), b"key"); manager.connect()
    return hashlib.sha256(manager.words().twice(bytes([n]) * 50000)).hexdigest()
if __name__ == "__main__":
    for how in "fork", "spawn":
        with multiprocessing.get_context(how).Pool(2) as pool:
            print(*pool.map(work, range(4)), sep="\n")
END
}

server() { exec python3 -c 'import sys, manager; manager.serve(int(sys.argv[1]))' "$PORT"; }

client() { python3 pool.py "$PORT"; }
