import json
from pathlib import Path

import pytest
import torch

from zipflm.training.optimizers import NesterovMomentum

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "nag.json").read_text())


def gradients(golden, p, q):
    """Clipped gradients of 0.5 p'Ap - b'p + 3 sum(q^2), and their norm before."""
    grads = [golden["A"] @ p - golden["b"], 6 * q]
    norm = torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))
    scale = (golden["clip_norm"] / (norm + 1e-6)).clamp(max=1) if golden["clip_norm"] else 1
    return [grad * scale for grad in grads], norm


@pytest.mark.parametrize("name", GOLDEN)
def test_ten_steps_equal_the_authors(name):
    golden = {k: torch.tensor(v) if k in ("A", "b") else v for k, v in GOLDEN[name].items()}
    p, q = (torch.nn.Parameter(torch.tensor(golden[key])) for key in ("p0", "q0"))
    optimizer = NesterovMomentum(
        [p, q], momentum=golden["momentum"], weight_decay=golden["weight_decay"]
    )
    close = {"rtol": 2e-5, "atol": 2e-6}
    for step in golden["steps"]:
        (p.grad, q.grad), norm = gradients(golden, p.detach(), q.detach())
        torch.testing.assert_close(norm, torch.tensor(step["gnorm"]), rtol=1e-5, atol=0)
        optimizer.param_groups[0]["lr"] = step["lr"]
        optimizer.step()
        torch.testing.assert_close(p.detach(), torch.tensor(step["p"]), **close)
        torch.testing.assert_close(q.detach(), torch.tensor(step["q"]), **close)
        # Their buffer is in units of the weights, ours in units of the gradient.
        buffer = -optimizer.state[p]["momentum_buffer"] * step["lr"]
        torch.testing.assert_close(buffer, torch.tensor(step["buf_p"]), **close)


def make(seed=0):
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(5))]
    return params, NesterovMomentum(params, lr=0.1, weight_decay=0.01)


def step(params, optimizer, fill, bad):
    for p in params:
        p.grad = torch.full_like(p, fill)
    optimizer.found_inf = torch.tensor(float(bad))
    optimizer.step()


def test_a_skipped_step_changes_nothing():
    params, optimizer = make()
    step(params, optimizer, 1.0, bad=False)
    step(params, optimizer, float("nan"), bad=True)
    optimizer.param_groups[0]["lr"] = 0.2
    step(params, optimizer, 2.0, bad=False)
    expected, reference = make()
    step(expected, reference, 1.0, bad=False)
    reference.param_groups[0]["lr"] = 0.2
    step(expected, reference, 2.0, bad=False)
    for ours, theirs in zip(params, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(
            optimizer.state[ours]["momentum_buffer"], reference.state[theirs]["momentum_buffer"]
        )


def test_gradients_are_divided_by_their_scale():
    (params, scaled), (expected, plain) = make(), make()
    scaled.grad_scale = torch.tensor(8.0)
    for _ in range(3):
        step(params, scaled, 2.0, bad=False)
        step(expected, plain, 0.25, bad=False)
    assert all(torch.equal(p, q) for p, q in zip(params, expected, strict=True))


def test_accepts_a_learning_rate_of_zero():
    params, optimizer = make()
    for rate in (0.0, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        step(params, optimizer, 1.0, bad=False)
    assert all(torch.isfinite(p).all() for p in params)
