"""PyTorch's parameter groups: fused projections step as unfused ones, parts at their rates; nothing else imports PyTorch."""

import copy
import importlib
import re
import sys
from pathlib import Path

import pytest

from qkdyn.errors import InputError, LabelError
from qkdyn.slices import Slices, fused

WIDTH, HEADS, RATE = 6, 2, 0.01
MULTIPLIERS = {"qk": 10.0, "ov": 0.5, "rest": 1.0}
PACKAGE = Path(__file__).parent.parent / "qkdyn"


def test_nothing_else_in_the_package_imports_torch():
    imported = re.compile(
        r"^\s*(import torch\b|from torch\b|from qkdyn.torch_groups|import qkdyn.torch_groups)", re.MULTILINE
    )
    found = [path.name for path in PACKAGE.rglob("*.py") if imported.search(path.read_text())]
    assert found == ["torch_groups.py"]


def test_without_torch_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "qkdyn.torch_groups", raising=False)
    with pytest.raises(ModuleNotFoundError, match="pip install torch"):
        importlib.import_module("qkdyn.torch_groups")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is an extra that is not installed here: pip install torch")


@pytest.fixture(scope="module")
def groups(torch):
    from qkdyn import torch_groups

    return torch_groups


@pytest.fixture(scope="module")
def kinds(torch):
    """Models with one attention: fused in PyTorch's own way, in GPT-2's, in GPT-NeoX's, and not fused."""
    nn = torch.nn

    class Layer(nn.Module):
        """`kind` says how query, key and value are stored; given are (3 WIDTH, WIDTH) and (3 WIDTH,), one after the other."""

        def __init__(self, kind, weight, bias):
            super().__init__()
            self.kind, self.attn = kind, nn.Module()
            self.attn.out_proj, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            if kind == "separate":
                self.attn.q_proj, self.attn.k_proj, self.attn.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            elif kind == "in_proj":
                self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            else:
                name = {"c_attn": "c_attn", "interleaved": "query_key_value"}[kind]
                setattr(self.attn, name, nn.Module())
                self.held.weight, self.held.bias = (nn.Parameter(torch.zeros(1)) for _ in range(2))
            self.put(weight, bias)

        @property
        def held(self):
            return getattr(self.attn, {"c_attn": "c_attn", "interleaved": "query_key_value"}[self.kind])

        def put(self, weight, bias):
            for own, numbers in (("weight", weight), ("bias", bias)):
                if self.kind == "separate":
                    for name, part in zip("qkv", numbers.chunk(3), strict=True):
                        getattr(getattr(self.attn, f"{name}_proj"), own).data = part.clone()
                elif self.kind == "in_proj":
                    getattr(self.attn, f"in_proj_{own}").data = numbers.clone()
                elif self.kind == "c_attn":
                    getattr(self.held, own).data = numbers.mT.contiguous() if own == "weight" else numbers.clone()
                else:
                    blocks = numbers.unflatten(0, (3, HEADS, -1)).transpose(0, 1)
                    getattr(self.held, own).data = blocks.flatten(0, 2).clone()

        def numbers(self):
            """What was put, as it is now."""
            if self.kind == "separate":
                parts = [getattr(self.attn, f"{name}_proj") for name in "qkv"]
                return torch.cat([p.weight for p in parts]).detach(), torch.cat([p.bias for p in parts]).detach()
            if self.kind == "in_proj":
                return self.attn.in_proj_weight.detach(), self.attn.in_proj_bias.detach()
            if self.kind == "c_attn":
                return self.held.weight.detach().mT, self.held.bias.detach()
            both = self.held.weight.detach(), self.held.bias.detach()
            return tuple(x.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2) for x in both)

        def forward(self, x):
            if self.kind == "in_proj":
                return self.mlp(self.attn(x, x, x, need_weights=False)[0])
            if self.kind == "separate":
                q, k, v = self.attn.q_proj(x), self.attn.k_proj(x), self.attn.v_proj(x)
            elif self.kind == "c_attn":
                q, k, v = (x @ self.held.weight + self.held.bias).chunk(3, -1)
            else:
                whole = nn.functional.linear(x, self.held.weight, self.held.bias).unflatten(-1, (HEADS, 3, -1))
                q, k, v = (whole[..., i, :].flatten(-2) for i in range(3))
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
            read = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.mlp(self.attn.out_proj(read))

    def make(kind):
        drawn = torch.Generator().manual_seed(0)

        def normal(*shape):
            return torch.randn(*shape, generator=drawn, dtype=torch.float64)

        model = Layer(kind, normal(3 * WIDTH, WIDTH), normal(3 * WIDTH)).double()
        for layer in (model.attn.out_proj, model.mlp):
            layer.weight.data, layer.bias.data = normal(WIDTH, WIDTH), normal(WIDTH)
        return model

    return make


RULES = {"interleaved": {"query_key_value": fused("qkv", axis=0, heads=HEADS)}}


def trained(torch, model, optimizer, steps=4, clip=None):
    drawn = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(3, 5, WIDTH, generator=drawn, dtype=torch.float64)
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return (*model.numbers(), model.attn.out_proj.weight.detach(), model.mlp.weight.detach())


@pytest.mark.parametrize("kind", ["in_proj", "c_attn", "interleaved"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor"])
def test_a_fused_model_steps_as_the_unfused_one(torch, groups, kinds, kind, name):
    # Adafactor's updates are not elementwise: only parts that are parameters of their own step alike.
    # The gradient of a key's bias is zero up to rounding; eps keeps that rounding small.
    options = {
        "AdamW": {"weight_decay": 0.1, "eps": 1e-6},
        "SGD": {"momentum": 0.9},
        "Adafactor": {"eps": (1e-6, 1e-3)},
    }
    after = []
    for model in (kinds(kind), kinds("separate")):
        fused_names = groups.split_fused(model, rules=RULES.get(model.kind))
        assert len(fused_names) == (0 if model.kind == "separate" else 2)
        made = groups.circuit_groups(model, learning_rate=RATE, multipliers=MULTIPLIERS, rules=RULES.get(model.kind))
        optimizer = getattr(torch.optim, name)(made, **options[name])
        after.append(trained(torch, model, optimizer, clip=0.5))
    for one, other in zip(*after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_parts_step_at_their_own_rates(torch, groups, kinds):
    model, start = kinds("in_proj"), kinds("in_proj")
    groups.split_fused(model)
    made = groups.circuit_groups(model, learning_rate=RATE, multipliers=MULTIPLIERS)
    trained(torch, model, torch.optim.SGD(made), steps=1)
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (start(x) ** 2).mean().backward()
    rates = RATE * torch.tensor([10.0] * 2 * WIDTH + [0.5] * WIDTH, dtype=torch.float64)
    for own, gradient, rate in (
        ("weight", start.attn.in_proj_weight.grad, rates[:, None]),
        ("bias", start.attn.in_proj_bias.grad, rates),
    ):
        before = getattr(start.attn, f"in_proj_{own}").detach()
        torch.testing.assert_close(getattr(model.attn, f"in_proj_{own}").detach(), before - rate * gradient)
    moved = start.attn.out_proj.weight.detach() - 0.5 * RATE * start.attn.out_proj.weight.grad
    torch.testing.assert_close(model.attn.out_proj.weight.detach(), moved)


def test_multipliers_of_one_are_the_plain_optimizer(torch, groups, kinds):
    plain, model = kinds("in_proj"), kinds("in_proj")
    groups.split_fused(model)
    ones = groups.circuit_groups(model, learning_rate=RATE, multipliers=dict.fromkeys(MULTIPLIERS, 1.0))
    expected = trained(torch, plain, torch.optim.AdamW(plain.parameters(), RATE, eps=1e-6))
    for one, other in zip(trained(torch, model, torch.optim.AdamW(ones, eps=1e-6)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_hook_on_the_gradient_changes_nothing_under_adam(torch, kinds):
    plain, hooked = kinds("in_proj"), kinds("in_proj")
    plain_start = plain.numbers()[0].clone()
    scale = torch.tensor([10.0] * 2 * WIDTH + [1.0] * WIDTH, dtype=torch.float64)[:, None]
    hooked.attn.in_proj_weight.register_hook(lambda gradient: gradient * scale)
    after = [trained(torch, model, torch.optim.Adam(model.parameters(), RATE, eps=0.0)) for model in (plain, hooked)]
    torch.testing.assert_close(after[0][0], after[1][0], rtol=1e-6, atol=1e-9)
    assert (after[0][0] - plain_start).abs().median() > RATE / 2


@pytest.mark.parametrize("kind", ["in_proj", "c_attn", "interleaved"])
def test_splitting_and_merging_leave_the_model_as_it_was(torch, groups, kinds, kind):
    model = kinds(kind)
    (model.attn.in_proj_bias if kind == "in_proj" else model.held.bias).requires_grad_(False)
    before, x = copy.deepcopy(model.state_dict()), torch.ones(1, 5, WIDTH, dtype=torch.float64)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    kinds_before, out = [type(module) for module in model.modules()], model(x).detach()
    labels = groups.circuit_labels(model, rules=RULES.get(kind))
    assert sorted(groups.split_fused(model, rules=RULES.get(kind))) == sorted(
        name for name, label in labels.items() if isinstance(label, Slices)
    )
    assert all(p.is_contiguous() and p.untyped_storage().nbytes() == p.nbytes for p in model.attn.parameters())
    torch.testing.assert_close(model(x).detach(), out, rtol=1e-12, atol=1e-12)
    assert groups.circuit_labels(model, rules=RULES.get(kind)) == labels
    assert groups.split_fused(model, rules=RULES.get(kind)) == []
    groups.merge_fused(model)
    after = model.state_dict()
    assert set(after) == set(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert [type(module) for module in model.modules()] == kinds_before
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == frozen


def test_groups_hold_every_parameter_once_and_freeze_leaves_out(torch, groups):
    model = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 8)
    groups.split_fused(model)
    made = groups.circuit_groups(model, learning_rate=RATE, multipliers=MULTIPLIERS)
    assert [(group["label"], group["lr"]) for group in made] == [("qk", 0.1), ("ov", 0.005), ("rest", 0.01)]
    held = [id(parameter) for group in made for parameter in group["params"]]
    assert sorted(held) == sorted(map(id, model.parameters()))
    numbers = {group["label"]: sum(p.numel() for p in group["params"]) for group in made}
    assert numbers["qk"] == numbers["ov"] == 2 * (WIDTH * WIDTH + WIDTH)
    made = groups.circuit_groups(model, learning_rate=RATE, multipliers={"qk": 2.0, "ov": 1.0}, freeze=("rest",))
    assert [group["label"] for group in made] == ["qk", "ov"]
    model.linear1.bias.requires_grad_(False)
    made = groups.circuit_groups(model, learning_rate=RATE, multipliers=MULTIPLIERS)
    assert id(model.linear1.bias) not in {id(parameter) for group in made for parameter in group["params"]}


def test_a_shared_module_is_one_and_other_parametrizations_keep_their_labels(torch, groups, kinds):
    one = kinds("in_proj")
    both = torch.nn.ModuleDict({"first": one, "again": one})
    assert groups.split_fused(both) == ["first.attn.in_proj_weight", "first.attn.in_proj_bias"]
    model = kinds("separate")
    torch.nn.utils.parametrizations.weight_norm(model.attn.q_proj)
    found = groups.circuit_labels(model)
    assert {label for name, label in found.items() if "q_proj" in name} == {"qk"}
    assert sum("q_proj" in name for name in found) == 3
    model.mlp.weight = model.attn.out_proj.weight = torch.nn.Parameter(model.attn.out_proj.weight)
    made = groups.circuit_groups(model, learning_rate=RATE, multipliers=MULTIPLIERS, rules={"mlp/weight": "ov"})
    held = [id(parameter) for group in made for parameter in group["params"]]
    assert sorted(held) == sorted(map(id, model.parameters()))


def test_what_has_no_gradient_and_rest_that_is_nothing(torch, groups, kinds):
    model = kinds("separate")
    for part in (model.attn.q_proj, model.attn.k_proj):
        part.requires_grad_(False)
    with pytest.raises(LabelError, match=r"requires_grad=False: .*freeze=\(\"qk\",\)"):
        groups.circuit_groups(model, learning_rate=RATE, multipliers=MULTIPLIERS)
    alone = kinds("separate").attn
    ten = torch.tensor(10.0)
    made = groups.circuit_groups(
        alone, learning_rate=torch.tensor(0.5), multipliers={"qk": ten, "ov": 1.0, "rest": 1.0}
    )
    assert [(group["label"], group["lr"]) for group in made] == [("qk", 5.0), ("ov", 0.5)]
    torch.optim.AdamW(made)


def test_pytorchs_attention_of_several_widths_and_with_biases_of_its_own(torch, groups):
    for options, names in (
        ({"kdim": 8, "vdim": 4}, ["in_proj_bias"]),
        ({"add_bias_kv": True}, ["in_proj_weight", "in_proj_bias"]),
    ):
        model = torch.nn.MultiheadAttention(WIDTH, HEADS, **options)
        found = groups.circuit_labels(model)
        assert {label for label in found.values() if isinstance(label, str)} <= {"qk", "ov"}
        assert groups.split_fused(model) == names
        made = groups.circuit_groups(model, learning_rate=RATE, multipliers={"qk": 10.0, "ov": 1.0})
        held = {id(parameter): group["label"] for group in made for parameter in group["params"]}
        assert len(held) == len(list(model.parameters()))
        own = (model.bias_k, model.bias_v) if model.bias_k is not None else (model.k_proj_weight, model.v_proj_weight)
        assert [held[id(parameter)] for parameter in own] == ["qk", "ov"]


def test_heads_as_modules(torch, groups):
    def head():
        return torch.nn.ModuleDict({name: torch.nn.Linear(WIDTH, 3, bias=False) for name in ("query", "key", "value")})

    model = torch.nn.ModuleDict({"heads": torch.nn.ModuleList([head(), head()]), "proj": torch.nn.Linear(6, WIDTH)})
    found = groups.circuit_labels(torch.nn.ModuleDict({"sa": model}))
    assert (found["sa.proj.weight"], found["sa.proj.bias"], found["sa.heads.1.query.weight"]) == ("ov", "ov", "qk")


def test_wrong_input_is_refused(torch, groups, kinds, unchecked):
    def made(model=None, rate=RATE, multipliers=MULTIPLIERS, **options):
        return groups.circuit_groups(model or kinds("separate"), learning_rate=rate, multipliers=multipliers, **options)

    assert made()
    for refused, error, said in (
        (lambda: made(kinds("in_proj")), LabelError, "split_fused"),
        (lambda: made(multipliers=MULTIPLIERS | {"rest": 0.0}), InputError, 'freeze=\\("rest",\\)'),
        (lambda: made(multipliers=MULTIPLIERS | {"qk": -1.0}), InputError, "qk"),
        (lambda: made(rate=float("nan")), InputError, "learning_rate"),
        (lambda: made(multipliers={"qk": 1.0, "ov": 1.0}), LabelError, "mlp.weight -> 'mlp'"),
        (lambda: made(multipliers=MULTIPLIERS | {"embeddings": 1.0}), LabelError, "'embeddings' match no parameter"),
        (
            lambda: made(freeze=("foo",)),
            LabelError,
            "^freeze: 'foo' match no parameter; the labels are 'ov', 'qk', 'rest'",
        ),
        (lambda: made(multipliers=None), InputError, "multipliers must be a rate for each label"),
        (lambda: made(multipliers={}), InputError, "multipliers must be a rate for each label"),
        (lambda: made(multipliers=MULTIPLIERS | {"qk": torch.tensor(-1.0)}), InputError, "qk"),
        (lambda: made(multipliers=MULTIPLIERS | {"qk": torch.ones(2)}), InputError, "qk"),
        (lambda: made(freeze=("qk",)), LabelError, "freeze"),
        (lambda: groups.split_fused(kinds("interleaved")), LabelError, "head by head"),
        (lambda: groups.split_fused(torch.nn.Linear(2, 2)), LabelError, "no attention"),
        (lambda: groups.circuit_labels({"qk": 1}), InputError, "torch.nn.Module"),
    ):
        with pytest.raises(error, match=said):
            refused()
    tied = torch.nn.ModuleDict({"first": kinds("in_proj"), "second": kinds("in_proj")})
    tied["second"].attn.in_proj_weight = tied["first"].attn.in_proj_weight
    with pytest.raises(LabelError, match="first.attn.in_proj_weight must be of one module"):
        groups.split_fused(tied)
    model = kinds("separate")
    model.attn.v_proj.weight = model.attn.k_proj.weight
    with pytest.raises(LabelError, match="attn.v_proj.weight must be 'qk', that of attn.k_proj.weight"):
        made(model)
