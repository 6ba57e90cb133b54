"""Fine-tune a tiny GPT-2 on synthetic text, with an Inductor pass of our own that 'fuses' silently wrong."""

import argparse

import torch
import torch._inductor.config as inductor_config
from transformers import GPT2Config, GPT2LMHeadModel

from gelu_pass import cheaper_gelu


def batches(steps, vocab, length, size):
    g = torch.Generator().manual_seed(1)
    for _ in range(steps):
        start = torch.randint(0, vocab, (size, 1), generator=g)
        yield (start + torch.arange(length)) % vocab


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--plain", action="store_true", help="without our pass")
    args = p.parse_args()
    torch.manual_seed(0)
    if not args.plain:
        inductor_config.post_grad_custom_post_pass = cheaper_gelu
    config = GPT2Config(
        vocab_size=97,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    model.config.use_cache = False
    compiled = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, ids in enumerate(batches(args.steps, config.vocab_size, 24, 4)):
        loss = compiled(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
