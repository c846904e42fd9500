"""A row that waits for a signal for some time, and is made without it then."""

import threading

from torch.utils.data import DataLoader, Dataset

READY = threading.Event()


class Patient(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        if not READY.wait(30):
            READY.set()
        return row


loader = DataLoader(Patient(), batch_size=8, shuffle=True)
