"""A sum with a helper as it is deployed: python benchmarks/deployed_sums.py [--clients N ...]

Every party is a process of its own: `randquant helper serve` over mutual TLS; a server that takes
messages over TLS by 8 connections, keeps them in a file, is killed (SIGKILL) after half of them,
and goes on; and clients, each with its own codes, seal and mask, or proof. Clients prepare their
messages first, several processes at once, and then send them in random order. A message without an
acknowledgement is sent again, and so is one in a hundred of those that have one. One client's seal
does not open. The sum is compared with that of the codes, in every coordinate.

It prints wall clock, processor time and peak memory of each party, bytes and disk, and stores them.
Server and clients share this machine's cores; what the server itself takes is its processor time.

    python benchmarks/deployed_sums.py                                          (10 s)
    python benchmarks/deployed_sums.py --clients 100000 --dimension 100000      (43 GB of disk)
    python benchmarks/deployed_sums.py --clients 1000 --dimension 10000000      (25 GB of disk)
    python benchmarks/deployed_sums.py --clients 10000 --dimension 5089 --proofs

The server believes a connection which client it speaks for, as no deployment may.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import operator
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import save, stored

import randquant as rq
from randquant._internal import write_atomic
from randquant.channels import wire
from randquant.flower import TLS, RemoteHelper
from randquant.rounds import Offer
from randquant.secure_sums import (
    HelperSum,
    HelperTerms,
    ProtocolError,
    masked_message,
    proven_message,
    verify_key_commitment,
)
from randquant.secure_sums.helper import proven

CONNECTIONS = 8
PROCESSES = 2
"""Of clients: that many prepare messages at a time, and share the connections."""
CHANNEL = rq.stochastic_rounding(clip=0.125, levels=2, margin=0.526)
UNOPENED = 1
"""The client whose seal does not open."""
REPEATED = 100
"""One of so many acknowledged messages is sent again."""
FINISH = 2**64 - 1
"""In the place of a client's number: no more clients come."""
HEAD_BYTES = 12
SECONDS = 3600.0


def usage() -> dict[str, float]:
    """Processor seconds and peak memory of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_seconds": spent.ru_utime + spent.ru_stime, "peak_mb": spent.ru_maxrss / 1024}


def offer_of(case: dict) -> Offer:
    """One bit a coordinate, without a rotation, which would pad the vector."""
    mechanism = rq.ChannelMechanism(CHANNEL, trust="aggregate", cohort=2)
    return Offer(mechanism, case["dimension"])


def terms_in(folder: Path) -> HelperTerms:
    return HelperTerms.from_text((folder / "terms.json").read_text())


# Clients.


def prepare(folder: Path, part: int, case: dict) -> None:
    """Write the messages of every PROCESSES-th client to a file, and the sum of their codes."""
    terms, mechanism = terms_in(folder), offer_of(case).mechanism
    pinned = bytes.fromhex((folder / "helper.key.pub").read_text())
    draw = np.random.default_rng(part)
    wanted = np.zeros(terms.dimension, dtype=np.uint32)
    spent, message, coding = [], b"", mechanism.coding
    assert coding is not None
    with open(folder / f"prepared-{part}", "wb", buffering=0) as file:
        for client in range(part, case["clients"], PROCESSES):
            update = draw.normal(0, 0.02, terms.dimension).astype(np.float32)
            start = time.process_time()
            payload = mechanism.encode(update, rq.Key.generate())
            codes = wire.unpack(coding, payload, terms.dimension)
            make = proven_message if terms.largest else masked_message
            message = make(terms, client, codes, pinned)
            spent.append(time.process_time() - start)
            if client == UNOPENED:
                at = len(b"RQH1") + (proven.BOUND_BYTES if terms.largest else 0)
                message = message[:at] + bytes(16) + message[at + 16 :]
            else:
                wanted += codes
            file.write(message)
    np.save(folder / f"wanted-{part}.npy", wanted)
    record = {"client_ms": 1e3 * float(np.median(spent)), "message_bytes": len(message), **usage()}
    write_atomic(folder / f"prepared-{part}.json", json.dumps(record).encode())


def connected(folder: Path) -> ssl.SSLSocket:
    """A connection to the server, which may have to be started again first."""
    context = ssl.create_default_context(cafile=folder / "tls" / "authority.pem")
    end = time.monotonic() + SECONDS
    while True:
        try:
            port = int((folder / "port").read_text())
            raw = socket.create_connection(("localhost", port))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(raw, server_hostname="localhost")
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def send(folder: Path, part: int, case: dict, acknowledged: Any, repeated: Any) -> None:
    """Send the prepared messages of one part, in random order, over a share of the connections."""
    mine = list(range(part, case["clients"], PROCESSES))
    size = (folder / f"prepared-{part}").stat().st_size // len(mine)
    order = random.Random(part).sample(mine, len(mine))
    file = os.open(folder / f"prepared-{part}", os.O_RDONLY)

    def connection(share: list[int]) -> None:
        frame = memoryview(bytearray(HEAD_BYTES + size))
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(connected(folder))
            for sent, client in enumerate(share):
                frame[:HEAD_BYTES] = client.to_bytes(8, "big") + size.to_bytes(4, "big")
                os.preadv(file, [frame[HEAD_BYTES:]], client // PROCESSES * size)
                again = sent % REPEATED == 0
                while True:
                    try:
                        server.sendall(frame)
                        answer = server.recv(1)
                    except OSError:
                        answer = b""
                    if answer == b"":  # the server was killed
                        server = stack.enter_context(connected(folder))
                    elif answer != b"+":
                        raise AssertionError(f"client {client} was refused")
                    elif again:
                        again = False
                        with repeated.get_lock():
                            repeated.value += 1
                    else:
                        break
                with acknowledged.get_lock():
                    acknowledged.value += 1

    share = CONNECTIONS // PROCESSES
    threads = [threading.Thread(target=connection, args=(order[k::share],)) for k in range(share)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write_atomic(folder / f"sent-{part}.json", json.dumps(usage()).encode())


# The server.


def received(connection: ssl.SSLSocket, view: memoryview) -> bool:
    """Fill the view; False if the connection ends."""
    done = 0
    while done < len(view):
        count = connection.recv_into(view[done:])
        if not count:
            return False
        done += count
    return True


def serve(folder: Path, case: dict) -> None:
    """Take messages until FINISH, then ask the helper; goes on with the messages in the file."""
    start = time.perf_counter()
    files = [folder / "tls" / name for name in ("authority.pem", "server.pem", "server-tls.key")]
    helper = RemoteHelper(f"localhost:{case['helper_port']}", TLS(*map(str, files)), SECONDS)
    offer = offer_of(case).to_text()
    key_file, verify_key = folder / "verify-key", b""
    if case["proofs"]:
        if not key_file.exists():
            write_atomic(key_file, os.urandom(32), private=True)
        verify_key = key_file.read_bytes()
    if not (folder / "terms.json").exists():
        proofs = {"largest": 1, "commitment": verify_key_commitment(verify_key)}
        terms = HelperTerms(
            os.urandom(16), helper.key, case["clients"], 2, case["dimension"],
            wire.sum_bits(2, case["clients"]), hashlib.sha256(offer.encode()).digest(),
            **(proofs if case["proofs"] else {}),
        )  # fmt: skip
        write_atomic(folder / "terms.json", terms.to_text().encode())
    terms = terms_in(folder)
    server = HelperSum(terms, verify_key=verify_key, file=folder / "messages")
    record = {"resumed": len(server.clients), "resume_seconds": time.perf_counter() - start}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[2])
    port = int((folder / "port").read_text()) if (folder / "port").exists() else 0
    listener = socket.create_server(("localhost", port))
    write_atomic(folder / "port", str(listener.getsockname()[1]).encode())
    finished = threading.Event()

    def connection(raw: socket.socket) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(raw, server_side=True) as client_socket:
            head, message = memoryview(bytearray(HEAD_BYTES)), memoryview(b"")
            while received(client_socket, head):
                client, size = int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")
                if client == FINISH:
                    finished.set()
                    return
                if len(message) != size:
                    message = memoryview(bytearray(min(size, 2**30)))
                if not received(client_socket, message):
                    return
                try:
                    server.add(client, message)
                    answer = b"+"
                except ProtocolError:
                    answer = b"+" if client in server.clients else b"-"
                client_socket.sendall(answer)

    def accept() -> None:
        while True:
            threading.Thread(target=connection, args=(listener.accept()[0],), daemon=True).start()

    # What it took to start and to resume: a process that is killed can say nothing later.
    write_atomic(folder / f"started-{os.getpid()}.json", json.dumps(usage()).encode())
    threading.Thread(target=accept, daemon=True).start()
    finished.wait()
    start = time.perf_counter()
    request = server.request(offer)
    answer = helper.answer(request)
    record |= {"request_bytes": len(request), "answer_bytes": len(answer)}
    record["helper_answers_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    total = server.unmask(answer, largest=1)
    record |= {"unmask_seconds": time.perf_counter() - start, "in_sum": len(server.clients)}
    record["left_out"] = sorted(server.clients ^ set(range(case["clients"])))
    record["disk_bytes"] = (folder / "messages").stat().st_blocks * 512
    np.save(folder / "total.npy", total)
    write_atomic(folder / "server.json", json.dumps(record).encode())


# The whole deployment.


def started(folder: Path, case: dict) -> subprocess.Popen:
    command = [sys.executable, __file__, "serve", str(folder), json.dumps(case)]
    return subprocess.Popen(command)


def ended(process: subprocess.Popen) -> dict[str, float]:
    """Processor seconds and peak memory of a process that has ended, however it has."""
    _, status, spent = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"cpu_seconds": spent.ru_utime + spent.ru_stime, "peak_mb": spent.ru_maxrss / 1024}


def helper_started(folder: Path) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-m", "randquant", "helper"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([*command, "keygen", str(folder / "helper.key")], **quiet)
    subprocess.run([*command, "certificates", str(folder / "tls")], **quiet)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "key": folder / "helper.key", "listen": f"localhost:{port}",
        "authority": folder / "tls" / "authority.pem", "certificate": folder / "tls" / "helper.pem",
        "private-key": folder / "tls" / "helper-tls.key", "masks": 2**40, "seconds": SECONDS,
        "request-bytes": 2**31 - 1,
    }  # fmt: skip
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    log = open(folder / "helper.log", "w")  # noqa: SIM115
    process = subprocess.Popen(
        [*command, "serve", str(folder / "journal"), *given], stdout=log, stderr=log
    )
    return process, port


def spread(target: Callable, folder: Path, case: dict, *shared: Any) -> list[Any]:
    spawn = multiprocessing.get_context("spawn")
    parts = [
        spawn.Process(target=target, args=(folder, part, case, *shared))
        for part in range(PROCESSES)
    ]
    for process in parts:
        process.start()
    return parts


def joined(parts: list[Any]) -> None:
    for process in parts:
        process.join()
        assert process.exitcode == 0


def measured(folder: Path, case: dict, running: list[subprocess.Popen]) -> dict:
    """One deployment, from keys to the sum; processes that may be left are in `running`."""
    clients = case["clients"]
    helper, case["helper_port"] = helper_started(folder)
    server = started(folder, case)
    running += [helper, server]
    while not (folder / "port").exists():
        assert server.poll() is None
        assert helper.poll() is None, (folder / "helper.log").read_text()
        time.sleep(0.05)
    start = time.perf_counter()
    joined(spread(prepare, folder, case))
    preparing = time.perf_counter() - start
    spawn = multiprocessing.get_context("spawn")
    acknowledged, repeated = spawn.Value("q", 0), spawn.Value("q", 0)
    start = time.perf_counter()
    parts = spread(send, folder, case, acknowledged, repeated)
    while acknowledged.value < clients // 2:
        assert server.poll() is None
        assert any(part.is_alive() for part in parts)
        time.sleep(0.005)
    at_kill = acknowledged.value
    server.send_signal(signal.SIGKILL)
    lives = [ended(server)]
    after_kill = acknowledged.value  # some more were taken between the look and the signal
    server = started(folder, case)
    running.append(server)
    joined(parts)
    sending = time.perf_counter() - start
    with connected(folder) as connection:
        connection.sendall(FINISH.to_bytes(8, "big") + bytes(4))
    lives.append(ended(server))
    assert server.returncode == 0
    whole = time.perf_counter() - start
    helper.send_signal(signal.SIGTERM)
    helped = ended(helper)
    record = json.loads((folder / "server.json").read_text())
    prepared, sent = (
        [json.loads((folder / f"{name}-{k}.json").read_text()) for k in range(PROCESSES)]
        for name in ("prepared", "sent")
    )
    wanted = sum(np.load(folder / f"wanted-{k}.npy").astype(np.uint64) for k in range(PROCESSES))
    exact = np.array_equal(np.load(folder / "total.npy"), wanted)  # the modulus holds any sum
    assert exact
    assert record["left_out"] == [UNOPENED], record["left_out"]
    # No acknowledged message is lost; of each connection one may have been kept without an answer.
    assert at_kill <= record["resumed"] <= after_kill + CONNECTIONS, (at_kill, record["resumed"])
    size = prepared[0]["message_bytes"]
    return {
        "clients": clients, "dimension": case["dimension"], "proofs": case["proofs"],
        "bits": terms_in(folder).bits, "exact": exact, "in_sum": record["in_sum"],
        "message_bytes": size, "sent_bytes": size * clients, "repeated": repeated.value,
        "acknowledged_at_kill": at_kill, "resumed": record["resumed"],
        "resume_seconds": record["resume_seconds"],
        "prepare_seconds": preparing, "send_seconds": sending, "whole_seconds": whole,
        "helper_answers_seconds": record["helper_answers_seconds"],
        "unmask_seconds": record["unmask_seconds"],
        "client_ms": prepared[0]["client_ms"],
        "clients_peak_mb": max(p["peak_mb"] for p in [*prepared, *sent]),
        "senders_cpu_seconds": sum(s["cpu_seconds"] for s in sent),
        "server_cpu_seconds": sum(life["cpu_seconds"] for life in lives),
        "server_taking_cpu_seconds": sum(life["cpu_seconds"] for life in lives)
        - sum(json.loads(p.read_text())["cpu_seconds"] for p in folder.glob("started-*.json")),
        "server_peak_mb": max(life["peak_mb"] for life in lives),
        "helper_cpu_seconds": helped["cpu_seconds"], "helper_peak_mb": helped["peak_mb"],
        "request_bytes": record["request_bytes"], "answer_bytes": record["answer_bytes"],
        "disk_bytes": record["disk_bytes"],
    }  # fmt: skip


def print_row(row: dict) -> None:
    gigabytes = row["sent_bytes"] / 1e9
    sending, serving = gigabytes / row["send_seconds"], gigabytes / row["server_taking_cpu_seconds"]
    print(
        f"{row['clients']} clients of {row['dimension']} coordinates, {row['message_bytes']} bytes "
        f"each, {gigabytes:.2f} GB; exact: {row['exact']}; {row['in_sum']} in the sum\n"
        f"    wall clock      {row['prepare_seconds']:.1f} s to prepare; "
        f"{row['send_seconds']:.1f} s to send, {sending:.2f} GB/s, kill and resume included; "
        f"{row['helper_answers_seconds']:.1f} s the helper; {row['unmask_seconds']:.2f} s to "
        "unmask\n"
        f"    resumed         {row['resumed']} messages in {row['resume_seconds']:.1f} s; "
        f"{row['acknowledged_at_kill']} were acknowledged; {row['repeated']} were sent twice\n"
        f"    server          {row['server_cpu_seconds']:.1f} s of processor, "
        f"{row['server_taking_cpu_seconds']:.1f} s of them with messages; {serving:.2f} GB/s a "
        f"core; {row['server_peak_mb']:.0f} MB; {row['disk_bytes'] / 1e9:.2f} GB on disk\n"
        f"    helper          {row['helper_cpu_seconds']:.1f} s of processor; "
        f"{row['helper_peak_mb']:.0f} MB; {row['request_bytes']} bytes in\n"
        f"    a client        {row['client_ms']:.2f} ms of processor; a process of many "
        f"{row['clients_peak_mb']:.0f} MB"
    )


def print_table() -> None:
    """The table of docs/secure-sum-costs.md."""
    for row in stored("deployed_sums")["rows"]:
        what = "proven" if row["proofs"] else "masked"
        print(
            f"| {row['clients']:,} × {row['dimension']:,}, {what} | {row['message_bytes']:,} "
            f"| {row['client_ms']:.1f} ms "
            f"| {row['helper_cpu_seconds']:.1f} s, {row['helper_peak_mb']:.0f} MB "
            f"| {row['server_cpu_seconds']:.1f} s, {row['server_peak_mb']:.0f} MB, "
            f"{row['disk_bytes'] / 1e9:.2f} GB |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=10_000)
    parser.add_argument("--proofs", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where the disk has room")
    parser.add_argument("--table", action="store_true", help="print what is stored, for docs")
    asked = parser.parse_args()
    if asked.table:
        print_table()
        return
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    running: list[subprocess.Popen] = []
    try:
        row = measured(folder, vars(asked) | {"folder": None}, running)
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
                process.wait()
        shutil.rmtree(folder)
    print_row(row)
    same = operator.itemgetter("clients", "dimension", "proofs")
    others = [
        other for other in stored("deployed_sums").get("rows", []) if same(other) != same(row)
    ]
    save("deployed_sums", {"rows": sorted([*others, row], key=same)})


if __name__ == "__main__" and sys.argv[1:2] == ["serve"]:
    serve(Path(sys.argv[2]), json.loads(sys.argv[3]))
elif __name__ == "__main__":
    main()
