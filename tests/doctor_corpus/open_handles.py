"""Set-ups of files, locks, pools and queues, and of workers that inherit them or are spawned."""

import logging
import multiprocessing
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import lmdb
import numpy as np
import torch
from corpus import Rows, Setup, TwoHundred, shuffled
from torch.utils.data import DataLoader, Dataset, get_worker_info

import torchyoga as yoga


def records():
    np.arange(400, dtype=np.int64).tofile("records.bin")
    return os.path.abspath("records.bin")


class Records(TwoHundred):
    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115

    def __getitem__(self, row):
        self.file.seek(row * 16)
        return np.frombuffer(self.file.read(16), np.int64).copy()


class RecordsOfWorkers(Records):
    def __init__(self, path):
        self.path, self.file = path, None


def begin_with_a_file(worker):
    rows = get_worker_info().dataset
    rows.file = open(rows.path, "rb")  # noqa: SIM115 - for as long as the worker lives


class RecordsOneByOne(TwoHundred):
    def __init__(self, path):
        self.path = path

    def __getitem__(self, row):
        with open(self.path, "rb") as file:
            file.seek(row * 16)
            return np.frombuffer(file.read(16), np.int64).copy()


def hdf5():
    with h5py.File("rows.h5", "w") as file:
        file["x"] = np.arange(800.0).reshape(200, 4)
    return "rows.h5"


class Hdf5(TwoHundred):
    def __init__(self, path):
        self.file = h5py.File(path, "r")

    def __getitem__(self, row):
        return self.file["x"][row]


class Hdf5OnFirstUse(TwoHundred):
    def __init__(self, path):
        self.path, self.file = path, None

    def __getitem__(self, row):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.file["x"][row]


class Hdf5LeftOut(Hdf5OnFirstUse):
    def __init__(self, path):
        self.path, self.file = path, h5py.File(path, "r")

    def __getstate__(self):
        return {"path": self.path, "file": None}


class Lmdb(TwoHundred):
    def __init__(self, path):
        self.environment = lmdb.open(path, readonly=True, lock=False)

    def __getitem__(self, row):
        with self.environment.begin() as transaction:
            return int(transaction.get(str(row).encode()))


def lmdb_opened_in_init():
    with lmdb.open("rows.lmdb") as environment, environment.begin(write=True) as transaction:
        for number in range(200):
            transaction.put(str(number).encode(), str(number).encode())
    return DataLoader(Lmdb("rows.lmdb"), batch_size=8, shuffle=True, num_workers=2)


# -- spawned workers


class Doubling(TwoHundred):
    def __init__(self):
        self.transform = lambda row: row * 2

    def __getitem__(self, row):
        return self.transform(row)


class Array(Dataset):
    def __init__(self):
        self.data = np.random.default_rng(0).random((2000, 80))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, row):
        return torch.from_numpy(self.data[row])


# -- locks


LOCK = threading.Lock()


class LockedInWorkers(TwoHundred):
    def __getitem__(self, row):
        if get_worker_info() is None:
            return row
        with LOCK:
            return row


def lock_held_at_fork():
    LOCK.acquire()
    return DataLoader(LockedInWorkers(), batch_size=8, shuffle=True, num_workers=1)


class Locked(TwoHundred):
    def __init__(self, lock):
        self.lock = lock

    def __getitem__(self, row):
        with self.lock:
            return row


def unpack(lock, has_begun):
    with lock:
        has_begun.set()
        time.sleep(60)


def lock_of_another_process():
    context = multiprocessing.get_context("fork")
    lock, has_begun = context.Lock(), context.Event()
    context.Process(target=unpack, args=(lock, has_begun), daemon=True).start()
    has_begun.wait()
    return DataLoader(Locked(lock), batch_size=8, shuffle=True)


READY = threading.Event()


class WaitingForASignal(TwoHundred):
    def __getitem__(self, row):
        if not READY.wait(30):
            READY.set()
        return row


class Counted(TwoHundred):
    def __init__(self):
        self.count = multiprocessing.Value("l", 0)

    def __getitem__(self, row):
        with self.count.get_lock():
            self.count.value += 1
        return row * 2


class Logged(TwoHundred):
    def __init__(self):
        self.log = logging.getLogger("other")

    def __getitem__(self, row):
        self.log.debug("row %d", row)
        return row * 2


def logger():
    logging.getLogger("other").addHandler(logging.StreamHandler())
    return DataLoader(Logged(), batch_size=8, shuffle=True, num_workers=2)


# -- pools and queues


class Parallel(TwoHundred):
    def __init__(self):
        self.pool = ThreadPoolExecutor(2)
        list(self.pool.map(abs, range(4)))

    def __getitem__(self, row):
        return sum(self.pool.map(abs, [row, -row]))


class ParallelInEach(TwoHundred):
    def __init__(self):
        self.pool = None

    def __getitem__(self, row):
        if self.pool is None:
            self.pool = ThreadPoolExecutor(2)
        return sum(self.pool.map(abs, [row, -row]))


class Queued(TwoHundred):
    def __init__(self):
        self.rows = queue.Queue(4)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        while True:
            self.rows.put(7)

    def __getitem__(self, row):
        for _ in range(4):
            self.rows.get()
        return row + self.rows.get()


ROWS = queue.Queue(4)


def fill():
    while True:
        ROWS.put(7)


def begin_to_fill(worker):
    threading.Thread(target=fill, daemon=True).start()


SETUPS = [
    Setup(
        "Workers that seek and read in one open file, whose offset they share.",
        lambda: shuffled(Records(records())),
        says="fork-unsafe",
        names="dataset.file",
    ),
    Setup(
        "A file that worker_init_fn opens, so that rows can be made in workers only.",
        lambda: shuffled(RecordsOfWorkers(records()), worker_init_fn=begin_with_a_file),
        never="broken-rows; KeyError",
    ),
    Setup(
        "A file that each row opens and closes.",
        lambda: shuffled(RecordsOneByOne(records())),
        never="fork-unsafe",
    ),
    Setup(
        "An HDF5 file opened in __init__, and forked workers.",
        lambda: shuffled(Hdf5(hdf5())),
        says="fork-unsafe",
        names="dataset.file",
        thread="pytorch/pytorch#11887",
    ),
    Setup(
        "An open HDF5 file, and workers that are spawned.",
        lambda: shuffled(Hdf5(hdf5()), num_workers=1, multiprocessing_context="spawn"),
        says="broken-rows wrong",
        names="pickle",
        thread="pavelsuma/ames#9",
    ),
    Setup(
        "An HDF5 file that each process opens on first use.",
        lambda: shuffled(Hdf5OnFirstUse(hdf5())),
        never="fork-unsafe",
    ),
    Setup(
        "A handle that __getstate__ leaves out.",
        lambda: shuffled(
            Hdf5LeftOut(hdf5()), num_workers=1, multiprocessing_context="spawn", persistent_workers=True
        ),
        never="broken-rows; fork-unsafe",
    ),
    Setup(
        "An LMDB environment opened in __init__.",
        lmdb_opened_in_init,
        says="fork-unsafe",
        names="dataset.environment",
        thread="pytorch/vision#689",
    ),
    Setup(
        "A lambda as transform, and workers that are spawned.",
        lambda: shuffled(Doubling(), num_workers=1, multiprocessing_context="spawn"),
        says="broken-rows wrong",
        names="lambda",
        thread="catalyst-team/catalyst#1024",
    ),
    Setup(
        "An array of 1.3 MB, and workers that are spawned.",
        lambda: shuffled(Array(), num_workers=1, multiprocessing_context="spawn", persistent_workers=True),
        never="broken-rows",
    ),
    Setup(
        "torchyoga's arrays, and workers that are spawned.",
        lambda: yoga.DataLoader(
            yoga.from_arrays({"x": np.random.default_rng(0).random((2000, 80))}),
            batch_size=8,
            shuffle=True,
            seed=1,
            num_workers=1,
            multiprocessing_context="spawn",
        ),
        never="broken-rows",
    ),
    Setup(
        "A lock that is held while workers are forked, as by a thread that writes a log.",
        lock_held_at_fork,
        says="hang wrong",
        thread="pytorch/pytorch#1355",
    ),
    Setup(
        "A lock that no thread holds at the fork, for threads of the worker.",
        lambda: shuffled(Locked(threading.Lock())),
        never="fork-unsafe",
    ),
    Setup(
        "A lock that another process has for a while, such as one that unpacks the data.",
        lock_of_another_process,
    ),
    Setup(
        "A row that waits for a signal for some time, and is made without it then.",
        lambda: shuffled(WaitingForASignal(), num_workers=0),
    ),
    Setup(
        "A counter in shared memory, with a lock of processes.",
        lambda: shuffled(Counted()),
        never="fork-unsafe",
    ),
    Setup("A dataset that holds a logger.", logger, never="fork-unsafe"),
    Setup(
        "A pool of threads that has worked before the fork: in a worker its threads are gone.",
        lambda: shuffled(Parallel()),
        says="hang wrong; fork-unsafe",
        names="dataset.pool",
        never="._",
        thread="pytorch/pytorch#75147",
    ),
    Setup(
        "A pool of threads that has started, and no workers: no process is forked but the doctor's own.",
        lambda: shuffled(Parallel(), num_workers=0),
        never="hang; fork-unsafe",
    ),
    Setup(
        "A pool of threads that each process makes as it needs it.",
        lambda: shuffled(ParallelInEach()),
        never="fork-unsafe; hang",
    ),
    Setup(
        "Workers that wait for a queue which a thread of the training process fills.",
        lambda: shuffled(Queued()),
        says="hang wrong",
        thread="activeloopai/deeplake#1888",
    ),
    Setup(
        "A queue that a thread of each worker fills, which worker_init_fn starts.",
        lambda: shuffled(Rows(lambda row: row + ROWS.get()), worker_init_fn=begin_to_fill),
    ),
]
