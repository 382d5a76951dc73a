"""Worker 0 waits for a connection from each other worker; all of them then end with exit code 0."""

import os
import socket
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
seconds = int(os.environ["BIREME_WAIT_SECONDS"])
deadline = time.monotonic() + seconds
if rank == 0:
    with socket.create_server(("", address[1])) as server:
        server.settimeout(seconds)
        for _ in range(size - 1):
            server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(address, timeout=5).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
print(f"worker {rank} of {size}: all reach worker 0")
