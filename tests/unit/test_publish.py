"""`make images REGISTRY=…`: what it would run, and what it runs."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from bireme.live.doctor import PROVIDERS

ROOT = Path(__file__).parents[2]
ECR = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
IMAGES = sorted(file.parent.name for file in ROOT.glob("images/*/Dockerfile"))
VERSION = (ROOT / "images/VERSION").read_text().strip()
# In place of docker and aws: they say what they were asked, on standard error.
SAY = '#!/bin/sh\necho "$(basename "$0") $*" >&2\ncase "$*" in *describe-repositories*) exit 255;; esac\n'


def publish(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "hack/images/publish.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
    )


@functools.cache
def lines(*arguments: str) -> list[str]:
    """The lines of a dry run."""
    done = publish("--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_dockerfile_is_built_in_its_folder_and_pushed() -> None:
    said = lines("ghcr.io/someone")
    assert not [line for line in said if "aws" in line]
    tags = [f"ghcr.io/someone/bireme/{name}:{VERSION}" for name in IMAGES]
    assert {"mpi", "nccl-tests", "tensorflow", "torch"} <= set(IMAGES)
    builds = [shlex.split(line) for line in said if line.startswith("docker buildx build")]
    assert all("--push" in build for build in builds)
    assert [build[build.index("--tag") + 1] for build in builds] == tags
    for build in builds:
        dockerfile, context = ROOT / build[-2], ROOT / build[-1]
        assert dockerfile.is_file()
        if dockerfile.parent.name == "bireme":
            # Its wheel is made by the command before.
            assert context == ROOT / "dist/wheels"
            continue
        assert context == ROOT / "images"
        copied = [
            line.split()[1:-1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY ")
        ]
        names = [name for part in copied if not part[0].startswith("--from") for name in part]
        assert [name for name in names if not (context / name).exists()] == []


def test_the_images_that_train_over_nccl_have_one_version_of_efa() -> None:
    """aws-ofi-nccl has the name libnccl-net-ofi.so since 1.15."""
    pins = {
        name: set(re.findall(r"^ARG (EFA_INSTALLER|AWS_OFI_NCCL)=(\S+)$", file.read_text(), re.MULTILINE))
        for name in ("mpi", "nccl-tests", "tensorflow", "torch")
        for file in [ROOT / "images" / name / "Dockerfile"]
    }
    assert pins["mpi"] == pins["nccl-tests"] == pins["tensorflow"] == pins["torch"]
    plugin = dict(pins["torch"])["AWS_OFI_NCCL"]
    assert tuple(int(part) for part in plugin.split(".")) >= (1, 15)


@pytest.mark.parametrize("target", ["tensorpack", "optimized"])
def test_the_programs_of_the_mask_r_cnn_workloads_are_where_their_images_have_them(target: str) -> None:
    dockerfile = (ROOT / "images/tensorflow/maskrcnn.Dockerfile").read_text()
    (stage,) = re.findall(rf"^FROM packages AS {target}$(.*?)(?=^FROM|\Z)", dockerfile, re.M | re.S)
    assert len(re.findall(r"^ARG [A-Z_]+=[0-9a-f]{40}$", stage, re.M)) == 1
    assert len(re.findall(r"^ARG [A-Z_]+_SHA256=[0-9a-f]{64}$", stage, re.M)) == 1
    (folder,) = re.findall(r'_SHA256" (/\S+)', stage)
    values = (ROOT / f"values/workloads/maskrcnn-{target}.yaml").read_text()
    assert re.search(rf"(python3|cd) {folder}\b", values)


def test_a_source_is_unpacked_without_its_folder_and_only_with_its_hash(tmp_path: Path) -> None:
    (tmp_path / "project-0a1b/examples").mkdir(parents=True)
    (tmp_path / "project-0a1b/examples/train.py").write_text("print(1)")
    archive = tmp_path / "0a1b.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "project-0a1b", "project-0a1b")
    command = [sys.executable, "images/tensorflow/source.py", archive.as_uri()]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    subprocess.run([*command, digest, str(tmp_path / "right")], cwd=ROOT, check=True)
    assert (tmp_path / "right/examples/train.py").read_text() == "print(1)"
    wrong = [*command, "0" * 64, str(tmp_path / "wrong")]
    done = subprocess.run(wrong, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "wrong").exists()) == (1, False)
    assert f"has the sha256 {digest}, not 000" in done.stderr


@pytest.mark.parametrize("folder", ["", "/team/ml"])
def test_at_ecr_it_logs_in_first_and_makes_repositories_that_are_missing(folder: str) -> None:
    rest = lines(f"{ECR}{folder}")
    assert rest[0] == f"# {IMAGES[0]}"
    assert rest[1].split(" | ") == [
        "aws ecr get-login-password --region us-west-2",
        f"docker login --username AWS --password-stdin {ECR}",
    ]
    made = [line.split()[-1] for line in rest if "create-repository" in line]
    assert made == [f"{folder.removeprefix('/')}/bireme/{name}".removeprefix("/") for name in IMAGES]


def test_nccl_tests_are_for_every_gpu_and_their_parts_have_hashes() -> None:
    text = (ROOT / "images/nccl-tests/Dockerfile").read_text()
    pins = dict(re.findall(r'^ARG (\w+)="?([^"\n]+)"?$', text, re.MULTILINE))
    # From V100 to RTX PRO 6000; CUDA 12.9 alone has the code of both ends and of B300.
    assert {int(each) for each in pins["GPUS"].split()} >= {70, 80, 90, 100, 103, 120}
    assert pins["CUDA"].startswith("12.9.")
    nccl = re.fullmatch(r"nvidia-nccl-cu12==2\.(\d+)\.\d+ --hash=sha256:[0-9a-f]{64}", pins["NCCL"])
    assert nccl
    assert int(nccl[1]) >= 28
    assert re.fullmatch(r"[0-9a-f]{40}", pins["NCCL_TESTS"]), "a commit"


def test_a_mirror_logs_in_where_the_efa_plugin_is_and_makes_repositories() -> None:
    said = lines("--mirror", f"{ECR}/team")
    assert "602401143452.dkr.ecr.us-west-2.amazonaws.com" in "".join(line for line in said if "login" in line)
    made = {line.split()[-1] for line in said if "create-repository" in line}
    assert {"team/coreos/etcd", "team/library/python", "team/bireme/torch"} <= made
    assert not [line for line in lines("--mirror", "ghcr.io/x") if "create-repository" in line]


def test_a_mirror_has_the_device_plugin_of_nvidia_that_the_walkthroughs_install() -> None:
    said = "\n".join(lines("--mirror", "ghcr.io/x"))
    (version,) = re.findall(
        r"^helm push dist/nvidia-device-plugin-(\S+)\.tgz oci://ghcr.io/x/charts$", said, re.M
    )
    assert (
        f"nvcr.io/nvidia/k8s-device-plugin:v{version} ghcr.io/x/nvidia/k8s-device-plugin:v{version}" in said
    )
    files = [*ROOT.glob("docs/walkthroughs/*.md"), ROOT / "docs/gpu.md", ROOT / "images/README.md"]
    text = "\n".join(file.read_text() for file in files) + PROVIDERS["nvidia.com/gpu"]
    assert set(re.findall(r"nvidia-device-plugin[^\n]*(?:\\\n)?[^\n]*--version (\S+)", text)) == {version}


def test_with_a_key_each_image_is_signed_by_its_digest_and_has_an_sbom(tmp_path: Path) -> None:
    (tmp_path / "cosign.key").write_text("")
    key = f"{tmp_path}/cosign.key"
    said = lines("--mirror", "--cosign-key", key, "--only", "torch", "ghcr.io/x")
    assert not [
        line for line in lines("--only", "torch", "ghcr.io/x") if "cosign" in line or "--sbom" in line
    ]
    (build,) = [line for line in said if "buildx" in line]
    assert "--sbom=true --provenance=mode=max --push" in build
    signed = re.findall(
        r"^cosign sign .* --key \S+ \"(\S+)@\$\(crane digest (\S+)\)\"$", "\n".join(said), re.M
    )
    copied = [line.split()[-1] for line in said if line.startswith("crane copy")]
    assert [image for image, _ in signed] == [f"ghcr.io/x/bireme/torch:{VERSION}", *copied]
    assert all(image == asked.partition("@")[0] for image, asked in signed)


@pytest.mark.parametrize(("chart", "keys"), [("mpi-training", ()), ("gpu-metrics", ("cloudwatch",))])
def test_charts_name_the_version_that_is_pushed(chart: str, keys: tuple[str, ...]) -> None:
    values = yaml.safe_load((ROOT / f"charts/{chart}/values.yaml").read_text())
    for key in keys:
        values = values[key]
    assert values["image"]["tag"] == VERSION


def test_the_architectures_are_those_that_the_base_has() -> None:
    said = lines("ghcr.io/someone", "--only", "bireme rclone torch")
    builds = [shlex.split(line) for line in said if line.startswith("docker buildx build")]
    platforms = [build[build.index("--platform") + 1] for build in builds]
    assert platforms == ["linux/amd64,linux/arm64", "linux/amd64,linux/arm64", "linux/amd64"]


def test_only_some_images_are_built_and_others_are_refused() -> None:
    said = lines("ghcr.io/someone", "--only", "paddle torch")
    assert [line for line in said if line.startswith("#")] == ["# paddle", "# torch"]
    done = publish("ghcr.io/someone", "--only", "paddel")
    assert done.returncode == 1
    assert "error: there is no images/paddel; there are bireme," in done.stderr


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """A PATH on which docker and aws say what they were asked."""
    for program in ("aws", "docker"):
        (tmp_path / program).write_text(SAY)
        (tmp_path / program).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_the_commands_are_run_and_the_end_says_which_images_failed(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    fails = '#!/bin/sh\ncase "$*" in *nccl-tests*|*/mpi:*) exit 1;; esac\necho "built $*"\n'
    (tmp_path / "docker").write_text(fails)
    done = publish(ECR, "--only", "mpi nccl-tests paddle torch", **programs)
    assert done.returncode == 1
    made = "aws ecr create-repository --region us-west-2 --repository-name bireme/torch"
    assert made in done.stderr.splitlines(), "beside the lines of bash -x, which begin with a plus"
    assert done.stdout.count("built buildx build ") == 2
    assert "error: these failed, see the output above: mpi, nccl-tests" in done.stderr


def test_make_images_hands_registry_and_dry_run_on() -> None:
    command = ["make", "--dry-run", "images", "REGISTRY=ghcr.io/someone", "DRY_RUN=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 'hack/images/publish.py --dry-run   "ghcr.io/someone"' in done.stdout
    mirrored = subprocess.run([*command, "MIRROR=1"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 'hack/images/publish.py --dry-run --mirror  "ghcr.io/someone"' in mirrored.stdout
    some = subprocess.run(
        [*command, "ONLY=paddle torch"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert '--only "paddle torch" "ghcr.io/someone"' in some.stdout


@pytest.mark.parametrize(
    ("registry", "sentence"),
    [("", "error: no registry: say where to push"), ("https://ghcr.io", "write a host without https://")],
)
def test_what_is_no_registry_is_answered_with_a_sentence(registry: str, sentence: str) -> None:
    done = publish(registry)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
