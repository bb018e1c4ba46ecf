"""Carries a Dockerfile's instructions out without a container engine: each stage is a layer over this machine's own files.

A stage starts with a copy of its base's layer, for overlays take no layers that lie in one another.

Needs root and overlay mounts on Linux. The base image is this machine with the running Python in `/usr/local`: like the image's,
where this is Debian. Everything else happens as in a build, with a clean environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.images.dockerfile import Stage, assignments, read_dockerfile

PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
_FROM_HERE = re.compile(r"PIP_|SSL_|REQUESTS_|https?_proxy|no_proxy", re.IGNORECASE)
"""Variables of this machine that a build needs to reach the package index."""


class Builder:
    """
    Args:
        folder: on a file system that can be an overlay's upper layer; ten gigabytes for all stages.
        context: what is sent to the engine, in a build.
    """

    def __init__(self, dockerfile: Path, context: Path, folder: Path) -> None:
        self.stages = read_dockerfile(dockerfile)
        self._context = context
        self._folder = folder
        self._built: set[str] = set()

    def build(self, name: str, arguments: Mapping[str, str]) -> None:
        """Build a stage and those it needs.

        Raises:
            subprocess.CalledProcessError: an instruction failed.
        """
        if name in self._built:
            return
        stage = self.stages[name]
        for needed in self._needs(stage):
            self.build(needed, arguments)
        if stage.base in self.stages:
            source, target = self._layer(stage.base), self._layer(name)
        else:
            source, target = Path(sys.base_prefix), self._layer(name) / "usr/local"
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", source, target], check=True)
        print(f"-- {name}", flush=True)
        environment = self.environment(stage.base)
        given: dict[str, str] = {}
        if stage.base not in self.stages:
            self._run(stage, "ldconfig", environment, {})  # Python's shared library has moved
        for instruction, text in stage.steps:
            print(f"   {instruction} {text[:100]}", flush=True)
            if instruction == "ENV":
                environment |= {key: _expand(value, environment | given) for key, value in assignments(text)}
            elif instruction == "ARG":
                variable, _, default = text.partition("=")
                given[variable] = arguments.get(variable, default)
            elif instruction == "WORKDIR":
                (self._layer(name) / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif instruction == "COPY":
                self._copy(stage, text)
            elif instruction == "RUN":
                mounts, command = self._mounts(text)
                self._run(stage, command, environment | given, mounts)
        self._built.add(name)

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a stage's ENV instructions and its bases'."""
        if name not in self.stages:
            return {"PATH": PATH}
        found = self.environment(self.stages[name].base)
        return found | {key: _expand(value, found) for key, value in self.stages[name].environment.items()}

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        """A program of this machine that runs the image's entry point as its user, all files but /tmp, /data, /files read-only."""
        stage = self.stages[name]
        user, group = stage.words("USER")[0].split(":")
        words = [*stage.words("ENTRYPOINT"), *(arguments or stage.words("CMD"))]
        inside = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs", *words]
        return self._mounted(name, inside, {}, read_only=True)

    def _needs(self, stage: Stage) -> list[str]:
        named = re.findall(r"from=(\S+?)[, ]", " ".join(f"{text} " for _, text in stage.steps))
        return [name for name in (stage.base, *named) if name in self.stages]

    def _layer(self, name: str) -> Path:
        return self._folder / name

    def _workdir(self, stage: Stage) -> str:
        """Where its instructions run: as its last WORKDIR says, or its bases'."""
        own = stage.words("WORKDIR")
        return own[0] if own else self._workdir(self.stages[stage.base]) if stage.base in self.stages else "/"

    def _copy(self, stage: Stage, text: str) -> None:
        words = text.split()
        root = self._context
        if words[0].startswith("--from="):
            root = self._layer(words.pop(0).removeprefix("--from="))
        *sources, target = words
        into = self._layer(stage.name) / str(Path(self._workdir(stage), target)).lstrip("/")
        for word in sources:
            found = root / word.lstrip("/")
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(found, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                place = into / found.name if target.endswith("/") else into
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, place)

    def _mounts(self, text: str) -> tuple[dict[str, Path], str]:
        mounts: dict[str, Path] = {}
        while found := re.match(r"--mount=(\S+)\s+", text):
            options = dict(pair.partition("=")[::2] for pair in found[1].split(","))
            if options["type"] == "bind":
                mounts[options["target"]] = self._layer(options["from"]) / options["source"].lstrip("/")
            text = text[found.end() :]
        return mounts, text

    def _mounted(
        self, name: str, words: Sequence[str], mounts: Mapping[str, Path], *, read_only: bool = False
    ) -> list[str]:
        work, merged = self._folder / "work" / name, self._folder / "merged" / name
        for folder in (work, merged):
            folder.mkdir(parents=True, exist_ok=True)
        lines = [
            "set -e",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={self._layer(name)},workdir={work} {merged}",
            f"mount -t proc proc {merged}/proc",
            f"mount --rbind /dev {merged}/dev",
        ]
        for target, source in mounts.items():
            lines += [f"mkdir -p {merged}{target}", f"mount --bind {source} {merged}{target}"]
        if read_only:
            for kept in ("data", "files"):
                lines.append(f"mount --bind {merged}/{kept} {merged}/{kept}")
            lines += [f"mount -t tmpfs -o mode=1777 tmpfs {merged}/tmp", f"mount -o remount,bind,ro {merged}"]
        workdir = self._workdir(self.stages[name])
        lines.append(f'exec chroot {merged} /bin/sh -c \'cd {workdir} && exec "$@"\' sh "$@"')
        return ["unshare", "-m", "/bin/sh", "-c", "\n".join(lines), "sh", *words]

    def _run(self, stage: Stage, command: str, environment: Mapping[str, str], mounts: Mapping[str, Path]) -> None:
        here = {key: value for key, value in os.environ.items() if _FROM_HERE.match(key)}
        words = self._mounted(stage.name, ["/bin/sh", "-c", command], mounts)
        subprocess.run(words, env={"HOME": "/root", **here, **environment}, check=True)


def _expand(value: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: environment.get(found[1], ""), value)
