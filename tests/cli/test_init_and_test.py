"""`udo init` and `udo test`: from nothing to a tested operator, and the messages when it fails."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound, require
from tests.support.selection import long

EXAMPLES = Path(__file__).parents[2] / "examples" / "operators"
SAMPLES = sorted(p.name for p in EXAMPLES.iterdir() if p.is_dir())


# Prints the traceback of each attempt that fails, then fails itself on a connection, which the sandbox refuses.
EACH_REFUSED = """
import socket, traceback
from udo_runtime import operator

@operator
def run(batch):
    for code in {tried}:
        try:
            exec(code)
        except Exception:
            traceback.print_exc()
    socket.create_connection(("127.0.0.1", 9))
"""


@pytest.mark.long
@pytest.mark.parametrize("style", ["batch", "event", "keyed", "model"])
def test_a_fresh_skeleton_passes_its_own_test(udo: Shell, tmp_path: Path, style: str) -> None:
    folder = tmp_path / "my-op"
    written = udo("init", folder, "--style", style, "--json").json["written"]
    more = {"model.json"} if style == "model" else set()
    assert {Path(p).name for p in written} == {"operator.toml", "my_op.py", "events.json", "test_operator.py", *more}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)], check=True, timeout=bound(60), cwd=folder)


def test_init_overwrites_nothing(udo: Shell, tmp_path: Path) -> None:
    udo("init", tmp_path / "x1")
    before = (tmp_path / "x1" / "x1.py").read_bytes()
    (tmp_path / "x1" / "events.json").unlink()
    assert "already there" in udo("init", tmp_path / "x1", "--style", "event", code=4).err
    assert (tmp_path / "x1" / "x1.py").read_bytes() == before
    assert not (tmp_path / "x1" / "events.json").exists()


def test_init_refuses_a_name_an_operator_cannot_have(udo: Shell, tmp_path: Path) -> None:
    assert "--name" in udo("init", tmp_path / "My Operator", code=2).err


def test_a_style_that_a_language_has_no_skeleton_of_is_refused_with_what_to_read(udo: Shell, tmp_path: Path) -> None:
    for style in ("keyed", "model"):
        assert "docs/" in udo("init", tmp_path / "x2", "--style", style, "--runtime", "go", code=2).err
    assert not (tmp_path / "x2").exists()


def test_a_skeleton_never_hides_a_module_of_python(udo: Shell, tmp_path: Path) -> None:
    udo("init", tmp_path / "json")
    udo("test", tmp_path / "json")


@pytest.mark.parametrize("example", [n if n == "card_testing" else long(n) for n in SAMPLES])
def test_every_example_answers_its_sample_events(udo: Shell, example: str) -> None:
    done = udo("test", EXAMPLES / example, "--json").json
    assert done["answers"]
    some = ("card_testing", "news_moves", "trade_quotes")  # patterns, and operators that wait for event time, answer some events only
    assert done["events"] == len(done["answers"]) or example in some


def test_a_keyed_operator_is_tested_as_one_session_whose_timers_fire_by_the_files_own_times(udo: Shell) -> None:
    answers = udo("test", EXAMPLES / "card_testing", "--batch-rows", "3", "--json").json["answers"]
    assert [(a["card_id"], a["kind"], a["small_payments"]) for a in answers] == [(17, "alert", 3), (58, "quiet", 3)]


@pytest.mark.long
def test_fraud_v2_catches_what_v1_misses(udo: Shell) -> None:
    flagged = [[a["flagged"] for a in udo("test", EXAMPLES / f"fraud_v{v}", "--json").json["answers"]] for v in (1, 2)]
    assert flagged == [[False, False, False, True], [False, True, True, True]]


def test_events_may_be_csv_parquet_or_json_lines(udo: Shell, tmp_path: Path, operator: Callable[..., Path]) -> None:
    folder = operator()
    (tmp_path / "e.csv").write_text("other,a\nx,1\ny,\n")
    (tmp_path / "e.jsonl").write_text('{"a": 1}\n{"a": 5}\n')
    pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int16())}), tmp_path / "e.parquet")
    assert udo("test", folder, "--events", tmp_path / "e.jsonl", "--json").json["answers"] == [{"b": 2}, {"b": 6}]
    assert udo("test", folder, "--events", tmp_path / "e.parquet", "--batch-rows", "2", "--json").json["answers"] == [
        {"b": 2},
        {"b": 3},
        {"b": 4},
    ]
    assert "NoneType" in udo("test", folder, "--events", tmp_path / "e.csv", code=6).err


def test_events_that_do_not_fit_are_named(udo: Shell, tmp_path: Path, operator: Callable[..., Path]) -> None:
    (tmp_path / "e.json").write_text('[{"z": 1}]')
    assert "column 'a' (int64) is missing; there are: z" in udo("test", operator(), "--events", tmp_path / "e.json", code=4).err
    (tmp_path / "e.json").write_text('[{"a": "many"}]')
    assert "column 'a': expected int64, got string" in udo("test", operator(), "--events", tmp_path / "e.json", code=4).err
    (tmp_path / "e.json").write_text("[{")
    assert "cannot be read" in udo("test", operator(), "--events", tmp_path / "e.json", code=2).err
    assert "no file" in udo("test", operator(), "--events", tmp_path / "none.json", code=3).err


def test_a_throwing_operator_shows_its_traceback_and_the_event(udo: Shell, operator: Callable[..., Path]) -> None:
    err = udo("test", folder := operator(body="assert 2 not in batch.column('a').to_pylist(), 'two'"), code=6).err
    assert "AssertionError: two" in err
    assert f'"{folder}/op.py"' in err  # the path where it was written, not its copy in the trial
    assert 'offending event: {"a": 2}' in err
    assert "udo_runtime/execution/load.py" not in err


def test_an_operator_that_answers_other_columns_is_told_which(udo: Shell, operator: Callable[..., Path]) -> None:
    source = "from udo_runtime import operator\n@operator\ndef run(batch):\n    return {'c': batch.column('a')}\n"
    assert "column 'b' (int64) is missing; there are: c" in udo("test", operator(source=source), code=4).err


@pytest.mark.long
def test_a_hanging_operator_is_ended(udo: Shell, operator: Callable[..., Path]) -> None:
    folder = operator(body="import time; time.sleep(600)")
    manifest = folder / "operator.toml"
    manifest.write_text(manifest.read_text().replace("answer_timeout_s = 2", "answer_timeout_s = 0.5"))
    assert "did not answer a frame within 0.5 s (limits.answer_timeout_s)" in udo("test", folder, code=6).err


@pytest.mark.long
def test_an_operator_that_exits_is_told_with_its_status(udo: Shell, operator: Callable[..., Path]) -> None:
    assert "exit status 7" in udo("test", operator(body="os._exit(7)"), code=6).err
    assert "SystemExit" in udo("test", operator(source="import sys; sys.exit(3)"), code=6).err


def test_what_an_operator_prints_does_not_mix_with_the_answers(udo: Shell, operator: Callable[..., Path]) -> None:
    done = udo("test", operator(body="print('noise')"), "--json")
    assert done.json["answers"] == [{"b": 2}, {"b": 3}]
    assert "noise" in done.err


def test_environment_secrets_and_files_reach_the_operator(udo: Shell, tmp_path: Path, operator: Callable[..., Path]) -> None:
    (tmp_path / "model.bin").write_text("7")
    folder = operator(
        body="assert (os.environ['E'], os.environ['S'], os.environ['T'], open('m').read()) == ('1', 'fromenv', 'fromstdin', '7')"
    )
    udo(
        "test",
        folder,
        "--env",
        "E=1",
        "--secret",
        "S",
        "--secret",
        "T",
        "--file",
        f"{tmp_path / 'model.bin'}:m",
        stdin="fromstdin\n",
        S="fromenv",
    )


def test_a_secret_with_its_value_on_the_command_line_is_refused_and_not_repeated(udo: Shell, operator: Callable[..., Path]) -> None:
    err = udo("test", operator(), "--secret", "S=hunter2", code=2).err
    assert "hunter2" not in err
    assert "environment" in err


def test_an_error_is_json_when_json_is_asked_for(udo: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = json.loads(udo("test", tmp_path / "empty", "--json", code=2).err)["error"]
    assert error["code"] == "manifest"
    assert "udo init" in error["message"]


def test_debug_shows_where_an_error_comes_from(udo: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "Traceback" in udo("test", tmp_path / "empty", "--debug", code=2).err
    assert "Traceback" in udo("--debug", "test", tmp_path / "empty", code=2).err


@pytest.mark.long
def test_a_package_that_an_operator_lacks_is_to_be_added_to_its_requirements(udo: Shell, operator: Callable[..., Path]) -> None:
    early, late = operator(source="import pandas\n"), operator(body="import sklearn.svm")
    for folder, package in ((early, "pandas"), (late, "sklearn")):
        said = udo("test", folder, code=6).err
        assert f"No module named '{package}'" in said and f"add the package of '{package}' to requirements in operator.toml" in said


@pytest.mark.parametrize("home", ["/dev/null/udo", "/sys/udo"])
def test_a_home_that_cannot_be_written_is_told(home: str) -> None:
    error = Shell(Path(home))("up", code=2).err
    assert f"UDO_HOME ({home})" in error and "must be a directory you can write to" in error and "unexpected" not in error


@pytest.mark.long
def test_a_trial_has_the_sandbox_and_the_limits_of_production(udo: Shell, operator: Callable[..., Path], tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        require("bwrap", "apt-get install -y --no-install-recommends bubblewrap")
    hungry = operator(body="import time; x = bytearray(300 << 20); time.sleep(60)")
    manifest = hungry / "operator.toml"
    manifest.write_text(manifest.read_text().replace("answer_timeout_s = 2", "answer_timeout_s = 60\nmemory_mb = 200"))
    assert "memory limit of 200 MiB exceeded" in udo("test", hungry, code=6).err
    (tmp_path / "secret").write_text("x")
    refused = {
        f"open({str(tmp_path / 'secret')!r})": "FileNotFoundError",
        "open('written', 'w')": "Read-only file system",
        "x = [open('/dev/null') for _ in range(2000)]": "Too many open files",
    }
    said = udo("test", operator(source=EACH_REFUSED.format(tried=list(refused))), code=6).err
    assert [why for why in [*refused.values(), "the node's sandbox gives operators no network"] if why not in said] == []
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts connections
        calls, named = "import socket; [socket.create_connection(('localhost', %d), 5) for _ in range(2)]", server.getsockname()[1]
        allowed = operator(body=calls % named)
        text = (allowed / "operator.toml").read_text()
        (allowed / "operator.toml").write_text(text.replace("[input]", f'network = ["localhost:{named}"]\n[input]', 1))
        assert udo("test", allowed, "--json").json["answers"] == [{"b": 2}, {"b": 3}]
        assert "gives operators no network" in udo("test", operator(body=calls % named), code=6).err
    assert udo("test", operator(body="open('/tmp/scratch', 'w').write('x')"), "--json").json["answers"] == [{"b": 2}, {"b": 3}]
