"""A sampler of batches, rows of many lengths, and a collate_fn that pads them.

not: broken-rows; shared-buffer
"""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Texts(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, row):
        return {"ids": torch.arange(row % 9 + 1) + row, "text": f"text {row}"}


def padded(rows):
    return pad_sequence([row["ids"] for row in rows], batch_first=True), [row["text"] for row in rows]


texts = Texts()
loader = DataLoader(texts, batch_sampler=BatchSampler(RandomSampler(texts), 16, False), collate_fn=padded)
