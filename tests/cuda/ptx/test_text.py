"""Reading PTX, its errors, `lint`, `stats`, and the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from attngen.backends.cuda import ptx
from attngen.cli.ptx import command
from tests.cuda.ptx.kernels import DATA, HEAD, entry, run


def test_scopes_vectors_labels_and_directives() -> None:
    text = f"""{HEAD} .file 1 "a.py"
    .extern .shared .align 16 .b8 dynamic[]; /* a comment
    over two lines */ .shared .align 8 .b64 mine;
    .visible .entry .unused_name(""".replace(".unused_name", "g")
    text += """.param .u64 .ptr .global .align 16 out, .param .align 64 .b8 map[128]) .maxntid 128, 1, 1 .minnctapersm 2 {
    .pragma "nounroll"; .reg .b32 %r<3>, %s; .reg .v2 .f32 %v; .loc 1 3 0, function_name $L__info, inlined_at 1 2 0
    mov.f32 %v.x, 0f3F800000; { .reg .b32 %r0; mov.u32 %r0, 0x10U; L: bra L; } { L: bra L; } mov.u32 %s, -1; ret;
    }
    .section .debug_info { .b32 1 .b8 {2} }"""
    module = ptx.parse(text, "g.ptx")
    (g,) = module.entries()
    assert module.target == ("sm_90a",)
    assert [(v.name, v.size, v.align) for v in g.params] == [("out", 8, 16), ("map", 128, 64)]
    assert g.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}
    assert {"%r0", "%r1", "%r2", "%s", "%v.x", "%v.y", "%r0#1"} == set(g.registers)
    assert [i.name for i in g.body] == ["mov.f32", "mov.u32", "bra", "bra", "mov.u32", "ret"]
    assert len(g.labels) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("add.u32 %r1, %r2, ;", "7: expected a constant, found ';'"),
        ("add.u32 %r1, %q2, 1;", "7: there is no register %q2"),
        ("add.u32 %r1, %r2, 1", "8: expected ',', found 'ret'"),
        ("mov.u32 %r1, %clock;", "7: there is no register %clock"),
        ("mov.u32 %r1, `;", "7: cannot read '`;'"),
        (".weird 3;", "7: the directive '.weird' is not known"),
        ("bra NOWHERE;", "7: there is no label NOWHERE"),
        ("mov.u32 %r1, nothing;", "7: nothing is neither a register, a variable nor a label"),
        ("X: X: ret;", "7: the label X is already defined"),
        (".reg .b7 %z;", "7: expected the type of a register, found '.b7'"),
        ("ld.global.u32 %r1, [%d1;", "7: expected ']', found ';'"),
    ],
)
def test_errors_name_file_line_and_word(text: str, complaint: str) -> None:
    with pytest.raises(ptx.PtxError) as caught:
        ptx.run(entry(text), "f", 1, 1, [np.zeros(1)], file="k.ptx")
    assert str(caught.value).startswith(f"k.ptx:{complaint}")


def test_entries_are_found_by_a_part_of_their_name() -> None:
    two = HEAD + ".entry _Zfirst() { ret; } .entry _Zsecond() { ret; }"
    assert ptx.run(two, "second", 1, 1, []).entry == "_Zsecond"
    for name in (None, "third"):
        with pytest.raises(ptx.PtxError, match="the entries are: _Zfirst, _Zsecond"):
            ptx.run(two, name, 1, 1, [])


BAD = entry(
    ".local .align 4 .b8 own[8]; mov.u64 %d1, own; st.local.u32 [%d1], 1; add.f64 %d2, %d1, %d1; "
    "sparkle.u32 %r1, %r2; .shared .align 4 .b8 s[12]; mov.u32 %r1, s;"
)


def test_lint_finds_what_it_should_and_nothing_else() -> None:
    found, (facts,) = ptx.lint(BAD, "bad.ptx")
    assert [f.rule for f in found] == ["f64", "local", "local", "unknown"]
    assert "bad.ptx:7: unknown: the instruction sparkle is not known" in str(found[-1])
    assert (facts.shared, facts.local, facts.instructions) == (12, 8, 6)
    assert facts.registers == {1: 10, 16: 20, 32: 40, 64: 20}
    for name in ("attend_sm80_f16_d64", "attend_sm90_bf16_d64_tma_roles", "numba_integers"):
        assert ptx.lint((DATA / f"{name}.ptx").read_text())[0] == []


def test_statistics_count_by_class() -> None:
    counts = ptx.statistics((DATA / "attend_sm80_f16_d64.ptx").read_text())["attend"]
    text = (DATA / "attend_sm80_f16_d64.ptx").read_text()
    assert counts["mma"] == text.count("mma.sync") == 32
    assert counts["ldmatrix"] == text.count("ldmatrix") == 24
    assert counts["cp.async"] == text.count("cp.async.cg")
    assert counts["barrier"] == text.count("bar.sync")
    assert sum(counts.values()) == 720


def cli(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, args, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value or 0, done.output


def test_command_line(tmp_path: Path) -> None:
    body = """ld.param.u64 %d0, [out]; ld.param.u64 %d2, [given]; ld.param.f32 %r5, [scale]; mov.u32 %r0, %tid.x;
    mad.wide.u32 %d1, %r0, 4, %d0;
    mad.wide.u32 %d2, %r0, 4, %d2; ld.global.f32 %r1, [%d2]; mul.f32 %r1, %r1, %r5; st.global.f32 [%d1], %r1;"""
    kernel, given, result = tmp_path / "k.ptx", tmp_path / "given.npy", tmp_path / "out.npz"
    kernel.write_text(entry(body, ".param .u64 out, .param .u64 given, .param .f32 scale"))
    np.save(given, np.arange(32, dtype=np.float32))
    named = ["--arg", "scale=2.5", "--arg", f"given={given}", "--arg", "out=zeros:float32:32"]
    code, output = cli("run", str(kernel), "--grid", "1", "--block", "32", *named, "--out", str(result))
    assert code == 0
    assert "all passed" in output
    np.testing.assert_array_equal(np.load(result)["out"], np.arange(32) * 2.5)
    ordered = ["--arg", f"{result}:out", "--arg", str(given), "--arg", "2"]
    assert "bounds" in cli("run", str(kernel), "--grid", "1", "--block", "32", *ordered, "--no-checks")[1]
    with pytest.raises(ptx.Defect, match="bounds"):
        cli("run", str(kernel), "--grid", "1", "--block", "33", *ordered)
    for bad, complaint in ((["--arg", "x=1"], "no parameter x"), (["--arg", "zeros:float32:a"], "zeros:DTYPE:SHAPE")):
        with pytest.raises(Exception, match=complaint):
            cli("run", str(kernel), "--grid", "1", "--block", "32", *bad)
    (tmp_path / "bad.ptx").write_text(BAD)
    code, output = cli("lint", str(tmp_path / "bad.ptx"), "--allow", "local")
    assert code == 1
    assert "f64" in output
    assert "uses local memory" not in output
    code, output = cli("lint", str(kernel))
    assert code == 0
    assert all(len(line) <= 100 for line in output.splitlines())
    assert "f32 arithmetic" in cli("stats", str(kernel))[1]


def test_helpers_write_where_they_are_told() -> None:
    assert run("st.global.u32 [%d0], 5;", np.zeros(2, np.uint32), threads=1).tolist() == [5, 0]


def test_tensor_maps_on_the_command_line(tmp_path: Path) -> None:
    """Triton's kernel with maps, run from the shell."""
    generate = np.random.default_rng(0)
    given = tmp_path / "in.npz"
    arrays = {n: generate.normal(size=(64, 64)).astype(np.float16) for n in "qkv"}
    np.savez(given, q=arrays["q"], k=arrays["k"], v=arrays["v"])
    args = [a for n in "qkv" for a in (f"map:64,64:128:{given}:{n}", "64", "64", "64", "1")]
    args += ["zeros:float16:64,64", "zeros:float32:64", "64", "64", "0.125", "0", "0"]
    result = tmp_path / "out.npz"
    launch = ["--grid", "1", "--block", "128", "--shared", "57400", "--out", str(result)]
    code, _ = cli("run", str(DATA / "attend_sm90_f16_d64_tma_causal.ptx"), *launch, *(x for a in args for x in ("--arg", a)))
    assert code == 0
    s = np.where(np.tri(64) > 0, arrays["q"].astype(float) @ arrays["k"].astype(float).T * 0.125, -np.inf)
    p = np.exp2(s - s.max(axis=1, keepdims=True))
    expected = p / p.sum(axis=1, keepdims=True) @ arrays["v"].astype(float)
    np.testing.assert_allclose(np.load(result)["attend_tma_param_15"], expected, atol=2e-3)
    with pytest.raises(Exception, match="map:BOX:SWIZZLE:ARRAY"):
        cli("run", str(DATA / "attend_sm90_f16_d64_tma_causal.ptx"), *launch, "--arg", "map:64:x")
