"""The `qkdyn` command: its tables, its refusals, and what it does not import."""

import subprocess
import sys
import time

import pytest

from qkdyn import __version__
from qkdyn.cli import main
from qkdyn.errors import OutputError
from qkdyn.theory import lemma3_bounds


def ask(capsys, *arguments):
    """Run a command; return its status, its rows as lists of cells, and its complaint."""
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, [line.split() for line in out.splitlines()], err


def test_ratio_and_loss_give_attention(capsys):
    status, rows, err = ask(capsys, "predict", "--loss", 0.1, "--ratio", 1)
    assert (status, err) == (0, "")
    assert rows[1] == ["circuits", "ratio", "loss", "attention", "mu_ov", "mu_qk", "t"]
    assert rows[2:] == [["CACO", "1", "0.1", "0.2631146", "13.82844", "1.272742", "43381.47"]]


def test_each_pair_gives_the_third(capsys):
    for pair in (("--attention", 0.2631146, "--loss", 0.1), ("--ratio", 1, "--attention", 0.2631146)):
        status, rows, _ = ask(capsys, "predict", *pair)
        assert status == 0
        row = [float(cell) for cell in rows[2][1:]]
        assert row == pytest.approx([1, 0.1, 0.2631146, 13.82844, 1.272742, 43381.47], rel=2e-6)


def test_lists_make_one_row_for_each_pair(capsys):
    _, rows, _ = ask(capsys, "predict", "--ratio", 0.01, 1, 100, "--loss", 1, 0.1)
    assert [row[1:3] for row in rows[2:]] == [[r, loss] for r in ("0.01", "1", "100") for loss in ("1", "0.1")]
    assert rows[-1][3] == "0.8976438"


def test_all_parameterizations_show_where_they_start(capsys):
    _, rows, _ = ask(
        capsys, "predict", "--ratio", 1, "--loss", 0.1, "--parameterization", "all", "--initial", 0.01, 0.01
    )
    caption = " ".join(rows[0])
    assert caption == (
        "m=5 n=50 b=50 M=5, eta_ov=1; start (mu_ov, mu_qk): "
        "FAFO (0.01, 0.01), CAFO (0.01, 0), FACO (0, 0.01), CACO (0, 0)"
    )
    attention = {row[0]: row[3] for row in rows[2:]}
    assert attention == {"FACO": "0.9522261", "CACO": "0.2631146", "FAFO": "0.1144519", "CAFO": "0.09423765"}


def test_default_start_of_factorized_circuits_is_shown(capsys):
    _, rows, _ = ask(capsys, "predict", "--ratio", 1, "--loss", 0.1, "--parameterization", "faco")
    assert " ".join(rows[0]).endswith("start (mu_ov, mu_qk): FACO (0, 0.1)")
    _, rows, _ = ask(capsys, "predict", "--ratio", 1, "--loss", 0.1, "--initial", 0.2, 0.3)
    assert " ".join(rows[0]).endswith("start (mu_ov, mu_qk): CACO (0.2, 0.3)")


def test_setting_and_rate(capsys):
    sizes = ("--m", 5, "--n", 50, "--b", 50, "--M", 20)
    _, rows, _ = ask(capsys, "predict", "--ratio", 0.01, "--loss", 1e-4, *sizes, "--eta-ov", 0.01)
    assert [f"{float(cell):.5g}" for cell in rows[2][3:6]] == ["0.14883", "81.669", "0.55878"]
    # 2553944 in units of 1/eta_qk, with eta_qk = 1e-4.
    assert float(rows[2][6]) == pytest.approx(2553944 / 1e-4, rel=1e-6)


def test_bounds(capsys):
    status, rows, _ = ask(capsys, "bounds", "--ratio", 1, "--t", 0, 1e6)
    assert status == 0
    assert [row[-1] for row in rows[2:]] == ["yes"] * 4
    assert [row[3] for row in rows[2:]] == ["mu_ov", "mu_qk"] * 2
    assert [row[7:9] for row in rows[2:4]] == [["-", "-"]] * 2
    ov, qk = rows[4:]
    assert [f"{float(cell):.3g}" for cell in ov[7:9] + qk[7:9]] == ["0.304", "4.26", "0.0664", "22.5"]
    assert float(ov[2]) == pytest.approx(0.4747558)


def test_bounds_that_do_not_hold(capsys):
    _, rows, _ = ask(capsys, "bounds", "--ratio", 100, "--t", 1e6, "--delta", 0.5)
    assert " ".join(rows[0]).endswith("delta = 0.5")
    assert [row[-1] for row in rows[2:]] == ["yes", "NO"]


def test_a_violated_upper_bound_is_reported(capsys, monkeypatch):
    def low(*arguments, **options):
        bounds = lemma3_bounds(*arguments, **options)
        return bounds._replace(mu_ov_upper=bounds.mu_ov_upper / 100)

    monkeypatch.setattr("qkdyn.cli.lemma3_bounds", low)
    _, rows, _ = ask(capsys, "bounds", "--ratio", 1, "--t", 1e6)
    assert [row[-1] for row in rows[2:]] == ["NO", "yes"]


@pytest.mark.parametrize(
    "question",
    [
        "--ratio 1 --attention 0.99999999999999 --parameterization all",
        "--ratio 1e-6 --attention 0.9 --parameterization all",
    ],
)
def test_attention_beyond_all_time(capsys, question):
    begun = time.process_time()
    status, rows, _ = ask(capsys, "predict", *question.split())
    assert time.process_time() - begun < 2
    assert status == 0
    assert [row[2] for row in rows[2:6]] == ["0"] * 4
    assert [row[6] for row in rows[2:6]] == ["inf"] * 4
    assert " ".join(rows[-1]).startswith("t = inf: t or eta_ov t is beyond 1e308")


def test_bounds_where_squares_underflow(capsys):
    _, rows, _ = ask(
        capsys, "bounds", "--ratio", 1e-75, 1, 1e75, "--t", 0, 1e-300, 1e-160, 1.710341000337803e-157, 1e-80, 1e300
    )
    assert {row[-1] for row in rows[2:]} == {"yes"}
    assert not any(cell in ("nan", "inf") for row in rows[2:] for cell in row)


def test_interrupted(capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("qkdyn.cli.lemma3_bounds", stop)
    assert ask(capsys, "bounds", "--ratio", 1, "--t", 1) == (130, [], "")


def test_compare_of_what_is_not_there(capsys, tmp_path):
    status, rows, err = ask(capsys, "compare", tmp_path / "none", tmp_path)
    assert (status, rows) == (2, [])
    assert "there is no such file" in err
    (tmp_path / "data.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(range(256)))
    status, rows, err = ask(capsys, "compare", tmp_path, tmp_path)
    assert (status, rows) == (2, [])
    assert "damaged" in err
    assert err.count("\n") == 1


def test_a_complaint_of_several_lines_becomes_one(capsys, monkeypatch):
    def told(a, b):
        raise OutputError("cannot read it:\n  layer one\n  layer two")

    monkeypatch.setattr("qkdyn.results.compare_runs", told)
    assert ask(capsys, "compare", "a", "b") == (2, [], "qkdyn: error: cannot read it: layer one layer two\n")


def test_compare_is_handed_on(capsys, monkeypatch):
    def told(a, b):
        if b == "missing":
            raise OutputError("cannot read missing")
        return f"{a} against {b}"

    monkeypatch.setattr("qkdyn.results.compare_runs", told)
    assert ask(capsys, "compare", "one", "two") == (0, [["one", "against", "two"]], "")
    assert ask(capsys, "compare", "one", "missing") == (2, [], "qkdyn: error: cannot read missing\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict --loss 0.1", "give exactly two of --ratio, --loss and --attention, got --loss"),
        ("predict", "give exactly two of --ratio, --loss and --attention, got none"),
        ("predict --loss 1 --ratio 1 --attention 0.5", "give exactly two of --ratio, --loss and --attention, got all"),
        ("predict --loss 2 --ratio 1", "CACO: loss must be between 0 and the loss at the start, 1.60943791"),
        ("predict --loss 1 --attention 0.01", "CACO: alpha must be between 0.0909090909"),
        ("predict --loss 1 --ratio -1", "--ratio must be positive and finite, got -1.0"),
        ("predict --loss 1 --ratio nan", "--ratio must be positive and finite, got nan"),
        ("predict --loss 1 --ratio fast", "argument --ratio: invalid float value: 'fast'"),
        ("predict --loss 1 --ratio 1 --m 0", "m must be an integer >= 1, got 0"),
        ("predict --loss 1 --ratio 1 --M 2.5", "argument --M: invalid int value: '2.5'"),
        ("predict --loss 1 --ratio 1 --parameterization OV", "parameterization must be one of FAFO, CAFO"),
        ("predict --loss 1 --ratio 1 --parameterization FAFO --initial 0 0", "FAFO: initial mu_ov must be > 0"),
        ("bounds --ratio 1 --t 5 4", "t must be strictly increasing"),
        ("bounds --ratio 1 --t 5 --delta 2", "delta must be between 0 and 1"),
        ("predict --ratio 1e-300 --attention 0.9", "--ratio must be between 1e-75 and 1e+75, got 1e-300"),
        ("predict --loss 1e-320 --ratio 1", "--loss must be between 1e-300 and 1e+300, got 1e-320"),
        ("predict --loss 1 --ratio 1 --eta-ov 1e-320", "CACO: eta_ov must be between 1e-75 and 1e+75, got 1e-320"),
        (
            "predict --loss 1 --ratio 1 --parameterization all --initial 1e-320 1e-320",
            "FAFO: initial must be 0 or of a",
        ),
        ("bounds --ratio 1 --t 1 --eta-ov 1e-320", "eta_ov must be between 1e-75 and 1e+75, got 1e-320"),
        ("bounds --ratio 1 --t 1e308 --eta-ov 1e10", "t must be 0 or of a size between 1e-300 and 1e+300"),
        ("bounds --ratio 1 --t 1e300 --eta-ov 1e10", "t must be at most 1e+290"),
        *(
            (f"predict --loss 1 --ratio 1 --{size} {'9' * 400}", f"{size} must be an integer of at most 1e+15")
            for size in "mnbM"
        ),
        ("frobnicate", "argument COMMAND: invalid choice: 'frobnicate'"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_errors_are_one_line_and_status_two(capsys, arguments, message):
    status, rows, err = ask(capsys, *arguments.split())
    assert (status, rows) == (2, [])
    assert err.startswith(f"qkdyn: error: {message}")
    assert err.count("\n") == 1


def test_version(capsys):
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"qkdyn {__version__}\n"


@pytest.mark.parametrize(
    "program",
    [
        "import qkdyn.theory",
        "from qkdyn.cli import main; main('predict --ratio 1 --loss 0.1 --parameterization all'.split())",
        "from qkdyn.cli import main; main('bounds --ratio 1 --t 1 2'.split())",
    ],
)
def test_small_questions_import_numpy_and_scipy_alone(program):
    heavy = "{'jax', 'jaxlib', 'diffrax', 'equinox', 'optax', 'flax', 'matplotlib', 'xarray', 'pandas', 'h5py'}"
    check = f"import sys; {program}; print('heavy:', sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_command_is_installed_and_leaves_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "qkdyn.cli", "predict", "--loss", "9", "--ratio", "1"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
