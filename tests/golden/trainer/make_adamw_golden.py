#!/usr/bin/env python3
"""Parameters after 1, 2 and 10 steps of torch.optim.AdamW (torch 2.11.0, CPU, f32), for
tests/server/trainer/adamw_test.cc.

usage: make_adamw_golden.py > adamw.txt
Gradients are sin(i + step); lr 1e-2, betas (0.9, 0.95), eps 1e-8, weight decay 0.1.
"""
import math

import torch

parameter = torch.nn.Parameter(torch.tensor([math.cos(i) for i in range(5)], dtype=torch.float32))
optimizer = torch.optim.AdamW([parameter], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
for step in range(1, 11):
    parameter.grad = torch.tensor([math.sin(i + step) for i in range(5)], dtype=torch.float32)
    optimizer.step()
    if step in (1, 2, 10):
        print(step, *(f"{value:.9g}" for value in parameter.tolist()))
