"""Values are read, set and merged as Helm does it: each result is compared with that of Helm itself."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.core.errors import BiremeError
from bireme.helm import Renderer, RenderError, RenderRequest, SetFlags, values
from bireme.helm.yaml import block_text
from bireme.tools import Toolbox

MakeChart = Callable[..., Path]
SHOW = "apiVersion: v1\nkind: Shown\nmetadata: {name: shown}\nvalues: {{ .Values | toJson }}\n"
HELMS = ("helm", "helm3")
STEADY = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def shown(toolbox: Toolbox, helm: str, chart: Path, args: Sequence[str]) -> Any:
    """What Helm's templates see as .Values, None when Helm refuses."""
    command = [str(toolbox.path(helm)), "template", "r", str(chart), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    line = next(line for line in done.stdout.splitlines() if line.startswith("values: "))
    return json.loads(line.removeprefix("values: "))


def as_doubles(value: Any) -> Any:
    """Numbers compared as the doubles that Go's JSON makes of them."""
    if isinstance(value, dict):
        return {key: as_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_doubles(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def ours(renderer: Renderer, chart: Path, files: Sequence[Path], settings: SetFlags, helm: str) -> Any:
    """What templates see of files and merged settings, None when they are refused."""
    try:
        request = RenderRequest(chart, values.load(files), helm=helm, settings=settings)
        return renderer.values(renderer.merged(request)).values
    except BiremeError:
        return None


def assert_same(
    renderer: Renderer,
    toolbox: Toolbox,
    chart: Path,
    files: Sequence[Path] = (),
    sets: Sequence[str] = (),
    helms: Sequence[str] = HELMS,
) -> bool:
    """Whether Helm takes them, after a comparison of what it makes of them."""
    flags = [f"--values={file}" for file in files] + [f"--set={text}" for text in sets]
    for helm in helms:
        theirs = shown(toolbox, helm, chart, flags)
        assert as_doubles(ours(renderer, chart, files, SetFlags(sets), helm)) == as_doubles(theirs), helm
    return theirs is not None


# --- reading YAML ---

SCALARS = [
    "y", "Y", "yes", "Yes", "YES", "yEs", "n", "N", "no", "No", "NO", "on", "On", "ON", "oN", "off", "OFF",
    "true", "True", "TRUE", "tRUE", "false", "False", "null", "Null", "NULL", "nULL", "~", "0", "00", "-0",
    "+1", "-1", "1_000", "1__0", "1_", "0x1F", "0x", "0X1f", "-0x1F", "0o17", "0O17", "017", "-017", "08",
    "09", "0b101", "-0b101", "0b2", "0b", "1e3", "1E3", "1e+3", "1e", "1e400", ".5", "-.5", "5.", ".",
    "1.0", "1.50", "1.2.3", "1_0.5", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "18446744073709551615", "18446744073709551616",
    "123456789012345678901234567890", "2020-01-01", "2020-1-1", "2020-01-01T10:00:00Z",
    "2020-01-01t1:2:3.5Z", "1:30", "190:20:30", "12:30:45.5", "0.1e-7", "+.5", "+0x10", "=", "<=", "1,000",
    "1Gi", "500m", "1e3m", "0xg", "+12e03", "_1", "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("helm", HELMS)
def test_every_plain_scalar_has_the_type_that_helm_gives_it(
    helm: str, toolbox: Toolbox, make_chart: MakeChart, tmp_path: Path
) -> None:
    chart = make_chart("show", templates={"show.yaml": SHOW})
    file = tmp_path / "scalars.yaml"
    lines = [f"s{number}: {text}" for number, text in enumerate(SCALARS)]
    file.write_text("\n".join([*lines, "date: 2020-01-01 10:11:12.5", "tagged: !!str 12", "int: !!int 12"]))
    theirs = shown(toolbox, helm, chart, ["-f", str(file)])
    assert as_doubles(values.load([file])) == as_doubles(theirs)
    assert theirs["s0"] is True


plain_words = st.one_of(
    st.from_regex(r"[+-]?(0[xXoObB])?[0-9_a-f]{1,5}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.from_regex(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ][0-9:]{1,8}(\.[0-9]{1,3})?Z?)?", fullmatch=True),
    st.sampled_from(["yes", "No", "on", "OFF", "Null", "~", "TRUE", "nO", ".5", "-.5e3"]),
)


@settings(STEADY, max_examples=4)
@given(words=st.lists(plain_words, min_size=150, max_size=200))
def test_a_text_that_bireme_writes_is_a_text_for_helm_too(
    words: list[str], toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chart = bare_chart(tmp_path_factory.mktemp("texts"))
    file, texts = chart / "texts.yaml", {f"t{number}": text for number, text in enumerate(SCALARS + words)}
    file.write_text(block_text([texts]))
    for helm in HELMS:
        assert shown(toolbox, helm, chart, ["-f", str(file)]) == texts


@settings(STEADY, max_examples=4)
@given(words=st.lists(plain_words, min_size=150, max_size=200))
def test_generated_plain_scalars_have_the_types_that_helm_gives_them(
    words: list[str], renderer: Renderer, toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chart = bare_chart(tmp_path_factory.mktemp("scalars"))
    file = chart / "given.yaml"
    file.write_text("".join(f"k{number}: {word}\n" for number, word in enumerate(words)))
    assert_same(renderer, toolbox, chart, [file])


def test_anchors_merge_keys_and_keys_that_are_not_strings_read_as_in_helm(
    renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart, tmp_path: Path
) -> None:
    chart = make_chart("show", templates={"show.yaml": SHOW})
    file = tmp_path / "v.yaml"
    file.write_text(
        "base: &base {a: 1, b: [x], c: {d: 1}}\n"
        "one: {<<: *base, a: 2}\ntwo:\n  a: 2\n  <<: *base\nthree:\n  <<: [{a: 5}, *base]\n"
        + "1: one\ntrue: yes\n1.5: f\n'<<': text\ntext: |\n  two\n  lines\n"
        + "folded: >-\n  a\n  b\n? on\n: switch\n"
        + 'quoted: "yes"\nempty:\n'
    )
    assert_same(renderer, toolbox, chart, [file])


def test_several_documents_in_one_file_are_merged_as_helm_4_does(
    renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart, tmp_path: Path
) -> None:
    chart = make_chart("show", templates={"show.yaml": SHOW})
    file = tmp_path / "v.yaml"
    file.write_text("a: {b: 1}\nl: [1]\n---\na: {c: 2}\nl: [2]\n---\n")
    assert_same(renderer, toolbox, chart, [file], helms=["helm"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: [1\n", "line 3"),
        ("- 1\n", "a list, not a mapping"),
        ("a: &x [*x]\n", "line 1: an anchor contains itself"),
        ("a: 1\n\tb: 2\n", "line 2"),
        ("a: .nan\n", "line 1: .nan is not a number"),
        ("{}: 1\n", "line 1: a mapping cannot be a key"),
        ("a: {<<: 5}\n", "`<<` needs a mapping"),
    ],
)
def test_the_error_for_broken_yaml_names_file_and_line(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(BiremeError, match=r"bad\.yaml") as raised:
        values.load([file])
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_error_for_a_missing_values_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(BiremeError, match=r"values file .*nowhere.yaml does not exist"):
        values.load([tmp_path / "nowhere.yaml"])


def test_the_error_for_a_values_file_that_is_not_text_names_it(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BiremeError, match=r"b.yaml is not UTF-8"):
        values.load([tmp_path / "b.yaml"])
    with pytest.raises(BiremeError, match=r"cannot be read"):
        values.load([tmp_path])


# --- setting ---

SETS = [
    "a=1,b=two,c.d=true",
    "a=null,b=~,c=NULL,d=False,e=0,f=00,g=-0,h=+5,i=0x1,j=1.5,k=1e3,l=",
    "big=9223372036854775807,bigger=9223372036854775808,small=-9223372036854775808",
    "l[0]=a,l[2]=c,l[1].b=1,l[3][0]=x",
    "l={a,b,1,null},m={},n={x}o=1",
    r"a\.b=1,c=x\,y,d\=e=2,f\[0\]=3,g={a\,b,c},h=\\",
    "deep.er.and[0].deeper=1,deep.er.x={1,2}",
    "n[1][2]=1",
    "tail=1,",
    "a[0]",
    "a[0].b=",
    "a[0][1]",
    "a[0].b=1,a[0].c=,a[1].b=",
    "sp ace= x ",
]
BAD_SETS = [
    "a",
    "a,b=1",
    "a[x]=1",
    "a[-1]=1",
    "a[65537]=1",
    "a={1,2",
    "a=1,a.b=2",
    "a=1,a[0]=2",
    "a[0]x=1",
]
BAD_SETS += [".".join("k" * 32) + "=1", "a=null,a.b=1", "l[0]=1,l[0][0]=2"]


@pytest.mark.parametrize("text", SETS + BAD_SETS)
def test_a_merged_setting_means_what_it_means_to_helm(
    text: str, renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart
) -> None:
    chart = make_chart("show", templates={"show.yaml": SHOW})
    assert assert_same(renderer, toolbox, chart, sets=[text]) == (text in SETS)


def test_all_kinds_of_settings_apply_in_helms_order(
    renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart, tmp_path: Path
) -> None:
    chart = make_chart("show", templates={"show.yaml": SHOW})
    (tmp_path / "text").write_text("two\nlines: yes\n")
    args = {
        "--set-file": [f"from.file={tmp_path}/text"],
        "--set-string": ["same=string,n=1,t=true", "list={1,2}"],
        "--set": ["same=set,n=2,only=3", "only=4"],
        "--set-json": [
            'same={"j":1.0},n=[1,2.50,1e2]',
            '{"whole": {"a": [1]}, "same": 5}',
            "e=,f= ,g=null",
            'l[1]={"x":9}',
        ],
    }
    flags = [word for option, texts in args.items() for text in texts for word in (option, text)]
    given_settings = SetFlags(
        sets=args["--set"],
        strings=args["--set-string"],
        jsons=args["--set-json"],
        files=args["--set-file"],
    )
    theirs = shown(toolbox, "helm", chart, flags)
    assert ours(renderer, chart, [], given_settings, "helm") == theirs
    request = RenderRequest(chart, settings=given_settings)
    assert renderer.render(request).manifests[0].thaw()["values"] == theirs


def test_a_file_that_a_setting_names_is_read_again_when_it_changes(
    renderer: Renderer, make_chart: MakeChart, tmp_path: Path
) -> None:
    request = RenderRequest(
        make_chart("show", templates={"show.yaml": SHOW}), settings=SetFlags(files=[f"a={tmp_path}/text"])
    )
    for text in ("one", "two"):
        (tmp_path / "text").write_text(text)
        assert renderer.render(request).manifests[0]["values"] == {"a": text}


# --- defaults, dependencies and what the user gives ---

names = st.sampled_from(["a", "b", "sub", "global"])
scalars = st.sampled_from([None, None, True, 0, 7, 1.5, 2**60, "x", "", [], [1, None], [{"a": None}]])
trees = st.recursive(scalars, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12)
mappings = st.dictionaries(names, trees, max_size=4)
set_paths = st.from_regex(r"(a|b|sub|global)(\.(a|b|global)|\[[01]\]){0,3}", fullmatch=True)
set_texts = st.one_of(
    st.lists(
        st.tuples(set_paths, st.sampled_from(["1", "null", "x", "{a,1}", "", "true"])).map("=".join),
        min_size=1,
        max_size=3,
    ).map(",".join),
    st.text(alphabet="ab.=,[]{}\\01 ", min_size=1, max_size=8),
)


def bare_chart(folder: Path) -> Path:
    (folder / "templates").mkdir()
    (folder / "Chart.yaml").write_text('{"apiVersion": "v2", "name": "show", "version": "0.1.0"}')
    (folder / "templates" / "show.yaml").write_text(SHOW)
    return folder


def write_charts(folder: Path, own: Any, sub: Any, condition: bool) -> Path:
    about = {"apiVersion": "v2", "version": "0.1.0"}
    need = {
        "name": "sub",
        "version": "0.1.0",
        "repository": "",
        **({"condition": "sub.a,b"} if condition else {}),
    }
    for path, name, needs, default in (
        (folder, "show", [need], own),
        (folder / "charts/sub", "sub", [], sub),
    ):
        (path / "templates").mkdir(parents=True)
        (path / "Chart.yaml").write_text(json.dumps({**about, "name": name, "dependencies": needs}))
        (path / "values.yaml").write_text(json.dumps(default))
    (folder / "templates" / "show.yaml").write_text(SHOW)
    return folder


@STEADY
@given(
    own=mappings,
    sub=mappings,
    files=st.lists(mappings, max_size=2),
    sets=st.lists(set_texts, max_size=2),
    condition=st.booleans(),
)
def test_files_settings_nulls_globals_and_subcharts_coalesce_as_in_helm(
    own: Any,
    sub: Any,
    files: list[Any],
    sets: list[str],
    condition: bool,
    renderer: Renderer,
    toolbox: Toolbox,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("coalesce")
    chart = write_charts(folder / "show", own, sub, condition)
    given_files = [folder / f"{number}.yaml" for number in range(len(files))]
    for path, content in zip(given_files, files, strict=True):
        path.write_text(json.dumps(content))
    assert_same(renderer, toolbox, chart, given_files, sets)


def test_aliases_tags_import_values_and_nested_charts_coalesce_as_in_helm(
    renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart
) -> None:
    chart = make_chart(
        "show",
        values={
            "first": {"own": 1},
            "tags": {"extra": False},
            "data": {"x": 0, "n": None},
            "global": {"g": {"deep": 1}},
        },
        templates={"show.yaml": SHOW},
        dependencies=[
            {
                "name": "sub",
                "alias": "first",
                "version": "0.1.0",
                "import-values": [{"child": "out", "parent": "data"}],
            },
            {
                "name": "sub",
                "alias": "second",
                "version": "0.1.0",
                "condition": "second.on",
                "import-values": ["up"],
            },
            {"name": "extra", "version": "0.1.0", "tags": ["extra"]},
        ],
    )
    sub = make_chart(
        "sub",
        values={"on": True, "out": {"x": 5, "y": 6}, "exports": {"up": {"lifted": True}}, "nothing": None},
        dependencies=[{"name": "leaf", "version": "0.1.0", "condition": "leaf.on"}],
        within=chart,
    )
    make_chart("leaf", values={"on": False, "global": {"g": {"deep": 2, "low": 3}}}, within=sub)
    make_chart("extra", values={"here": 1}, within=chart)
    for args in (
        [],
        ["first.leaf.on=true"],
        ["second.on=false,tags.extra=true"],
        ["global.g.deep=null,data.x=null"],
    ):
        assert_same(renderer, toolbox, chart, sets=args)


def test_a_packaged_dependency_is_read_like_a_folder(
    renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart
) -> None:
    chart = make_chart(
        "show",
        values={"sub": {"own": 1}},
        templates={"show.yaml": SHOW},
        dependencies=[{"name": "sub", "version": "0.1.0"}],
    )
    sub = make_chart("sub", values={"there": {"be": 1}}, within=chart)
    make_chart("leaf", values={"deep": True}, within=sub)
    with tarfile.open(chart / "charts" / "sub-0.1.0.tgz", "w:gz") as tar:
        tar.add(sub, arcname="sub")
    sub.rename(chart.parent / "moved-away")
    assert_same(renderer, toolbox, chart, sets=["sub.there.be=2"])


def test_values_of_a_dependency_that_are_no_mapping_are_refused(
    renderer: Renderer, make_chart: MakeChart
) -> None:
    chart = make_chart("web", dependencies=[{"name": "sub", "version": "0.1.0"}])
    make_chart("sub", within=chart)
    with pytest.raises(RenderError, match="type mismatch on sub"):
        renderer.values(RenderRequest(chart, {"sub": "on"}))


def test_neither_side_of_a_merge_is_changed() -> None:
    base, over = {"a": {"b": [1]}, "c": 1}, {"a": {"d": 2}, "c": None}
    assert values.merge(base, over) == {"a": {"b": [1], "d": 2}, "c": None}
    assert (base, over) == ({"a": {"b": [1]}, "c": 1}, {"a": {"d": 2}, "c": None})
