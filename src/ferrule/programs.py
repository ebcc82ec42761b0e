"""Say which programs do more with their arguments than their names tell.

A program is in this table if its arguments can make it run another program, run code, or write a file of the caller's
choice. A rule that allows such a program with any arguments allows everything that the user of the machine may do. The
programs' manual pages are the source; GTFOBins (gtfobins.github.io) collects the options of most of them.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ferrule.shell_syntax import words_of


class Risk(NamedTuple):
    """What the arguments of a program can make it do. See docs/policy.md#check.

    Attributes:
        text: As a person reads it, after the program's name: "runs the code that it is given".
        kind: How. An interpreter runs the code in its arguments, or on its standard input; of a runner and of a writer
            any argument can name a program or a file; with the others, an option is needed.
    """

    text: str
    kind: Literal["interpreter", "runner", "writer", "by options"] = "by options"


_INTERPRETER: Final = Risk("runs the code that it is given", "interpreter")
_RUNNER: Final = Risk("runs the programs that its arguments name", "runner")
_WRITER: Final = Risk("writes the files that its arguments name", "writer")
_BUILD: Final = Risk("runs what the files of a project say, and an option can name other files")
_PACKAGES: Final = Risk("installs packages and runs their code")

_PROGRAMS: Final = {
    _INTERPRETER: "sh bash dash ash zsh ksh mksh fish rbash csh tcsh pwsh powershell cmd python pypy ipython perl"
    " ruby irb node nodejs deno bun ts-node tsx php lua luajit tclsh expect rscript r julia groovy jshell java"
    " osascript awk gawk mawk nawk sed ed ex vi vim nvim view emacs nano m4 dc gdb lldb psql mysql mariadb sqlite3"
    " duckdb octave scala kotlin elixir iex erl guile racket sbcl ghci runghc mongosh redis-cli lftp",
    _RUNNER: "env sudo doas su runuser pkexec nice ionice chrt taskset nohup setsid time timeout stdbuf xargs"
    " command builtin exec eval source . trap busybox toybox chroot flock strace ltrace watch caffeinate script"
    " parallel find fd fdfind unshare nsenter setarch setpriv capsh run-parts systemd-run systemctl"
    " start-stop-daemon ssh sshpass mosh docker podman nerdctl kubectl oc helm vagrant screen tmux at batch crontab"
    " entr nodemon npx bunx pnpx uvx pipx nix nix-shell direnv git-shell socat nc ncat perf valgrind bwrap firejail"
    " proot fakeroot cpulimit unbuffer rlwrap hyperfine launchctl sg ansible ansible-playbook terraform tofu pulumi aws"
    " gcloud service dotnet open xdg-open",
    _BUILD: "make gmake cmake ninja meson just task rake invoke nox tox pytest coverage mypy pre-commit go cargo"
    " rustc mvn gradle gradlew ant sbt mix bazel scons npm pnpm yarn gulp grunt webpack vite jest vitest mocha"
    " eslint phpunit rails rspec sphinx-build mkdocs gcc g++ cc c++ clang clang++ ld tex latex pdflatex lualatex"
    " xelatex latexmk",
    _PACKAGES: "pip pipenv uv poetry pdm hatch conda mamba gem bundle bundler composer cpan cpanm luarocks apt apt-get"
    " aptitude dpkg yum dnf rpm zypper pacman apk brew snap flatpak",
    _WRITER: "tee sponge dd cp mv ln install rsync scp sftp patch split csplit uniq xxd unzip 7z cpio pax ar gpg"
    " openssl ffmpeg pandoc wget2 aria2c yt-dlp",
}
_BY_OPTIONS: Final = {
    "ag": "runs a program by --pager",
    "bat": "runs a program by --pager",
    "bsdtar": "runs a program by --use-compress-program, and writes the files that it unpacks",
    "curl": "writes a file by -o, and sends any file by -T and -d",
    "gh": "runs programs by alias and extension, and changes what is on the server",
    "git": "runs programs and writes files by options, such as -c, --exec, --upload-pack and --output",
    "glab": "runs programs by alias, and changes what is on the server",
    "hg": "runs programs by --config",
    "iconv": "writes a file by -o",
    "ip": "runs programs by netns exec",
    "jj": "runs programs by --config",
    "less": "writes a file by -o, and runs programs by !",
    "man": "runs a program by -P",
    "nmap": "runs code by --script, and writes files by -oN",
    "rg": "runs a program by --pre",
    "sort": "runs a program by --compress-program, and writes a file by -o",
    "svn": "runs programs by --diff-cmd and --config-option",
    "tar": "runs programs by --to-command and --checkpoint-action, and writes the files that it unpacks",
    "tcpdump": "runs a program by -z, and writes a file by -w",
    "tree": "writes a file by -o",
    "wget": "runs a program by --use-askpass, and writes a file by -O",
    "yq": "writes files by -i",
    "zip": "runs a program by -TT, and writes an archive",
}
_RISKS: Final = {name: risk for risk, names in _PROGRAMS.items() for name in words_of(names)} | {
    name: Risk(text) for name, text in _BY_OPTIONS.items()
}


@lru_cache(maxsize=1024)
def program_name(word: str) -> str:
    """The last part of a program's path, in small letters, since some file systems do not tell them apart. See
    docs/guards.md#commands."""
    return posixpath.basename(word).casefold()


def risk_of(program: str) -> Risk | None:
    """What the arguments of a program can make it do, or None if it is not known to do more than its name says.
    See docs/policy.md#check.

        >>> risk_of("/usr/bin/python3.11").kind
        'interpreter'
    """
    name = program_name(program).removesuffix(".exe")
    return _RISKS.get(name) or _RISKS.get(name.rstrip("0123456789.-"))
