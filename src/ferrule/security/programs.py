"""List the programs whose arguments can do more than their names tell.

A program is in this table if its arguments can make it run another program, run code, or write a file of the caller's
choice. A rule that allows such a program with any arguments allows everything that the user of the machine may do. The
programs' manual pages are the source; GTFOBins (gtfobins.github.io) collects the options of most of them.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ferrule.security.shell_syntax import split_words


class Risk(NamedTuple):
    """The possible effects of a program's arguments. See docs/policy.md.

    Attributes:
        text: The effect for a person, after the program's name: "runs the code that it is given".
        kind: An interpreter runs the code in its arguments, or on its standard input. Any argument of a runner can name
            a program, and any argument of a writer a file. The others need an option for that.
    """

    text: str
    kind: Literal["interpreter", "runner", "writer", "by options"] = "by options"


_RISKS_AND_NAMES: Final = (
    (
        Risk("runs the code that it is given", "interpreter"),
        "sh bash dash ash zsh ksh mksh fish rbash csh tcsh pwsh powershell cmd python pypy ipython perl raku"
        " ruby irb node nodejs deno bun ts-node tsx qjs php lua luajit tclsh wish expect rscript r julia groovy jshell"
        " java osascript awk gawk mawk nawk sed ed ex vi vim nvim view emacs nano m4 dc gdb lldb psql mysql mariadb"
        " sqlite3 duckdb octave scala kotlin clojure clj bb elixir iex erl guile racket sbcl ghc ghci runghc runhaskell"
        " ocaml utop swift zig nim crystal gnuplot gforth mongosh redis-cli sqlplus sqlcmd ftp lftp cscript wscript"
        " mshta",
    ),
    (
        Risk("runs the programs that its arguments name", "runner"),
        "env sudo doas su runuser pkexec nice ionice chrt taskset nohup setsid time timeout stdbuf xargs"
        " command builtin exec eval source . trap busybox toybox chroot flock strace ltrace watch caffeinate script"
        " parallel find fd fdfind fzf unshare nsenter setarch setpriv capsh run-parts systemd-run systemctl"
        " start-stop-daemon ssh sshpass mosh docker podman nerdctl kubectl oc helm vagrant lxc screen tmux at batch"
        " crontab entr nodemon npx bunx pnpx uvx pipx nix nix-shell direnv git-shell socat nc ncat perf valgrind bwrap"
        " firejail proot fakeroot cpulimit unbuffer rlwrap hyperfine launchctl sg gosu su-exec tini dumb-init xvfb-run"
        " dbus-run-session ansible ansible-playbook terraform tofu pulumi aws gcloud service xcrun dotnet open xdg-open"
        " start runas forfiles rundll32 wsl wine ldd rustup",
    ),
    (
        Risk("writes the files that its arguments name", "writer"),
        "tee sponge dd cp mv ln install rsync scp sftp patch split csplit uniq xxd unzip 7z cpio pax ar gpg"
        " openssl ffmpeg pandoc wget2 aria2c yt-dlp",
    ),
    (
        Risk("runs programs or writes files that its options, or the files of a project, name"),
        "make gmake cmake ninja meson just task rake invoke nox tox pytest coverage mypy pre-commit go cargo"
        " rustc mvn gradle gradlew ant sbt mix bazel scons npm pnpm yarn gulp grunt webpack vite jest vitest mocha"
        " eslint phpunit rails rspec sphinx-build mkdocs gcc g++ cc c++ clang clang++ ld tex latex pdflatex lualatex"
        " xelatex latexmk swiftc ocamlfind ocamlopt dune stack cabal xcodebuild pip pipenv uv poetry pdm hatch conda"
        " mamba gem bundle bundler composer cpan cpanm luarocks apt apt-get aptitude dpkg yum dnf rpm zypper pacman apk"
        " brew snap flatpak ag bat bsdtar curl gh git glab hg iconv ip jj less man nmap rg sort svn tar tcpdump tree"
        " gs nx turbo wget yq zip",
    ),
)
_RISKS: Final = {name: risk for risk, names in _RISKS_AND_NAMES for name in split_words(names)}


@lru_cache(maxsize=1024)
def program_name(word: str) -> str:
    """Return the last part of a program's path, in lower case, because some file systems ignore case.

    See docs/guards.md#commands.
    """
    return posixpath.basename(word).casefold()


def find_risk(program: str) -> Risk | None:
    """Return the possible effects of a program's arguments, or None if the program is not in the table.

    See docs/policy.md.

        >>> find_risk("/usr/bin/python3.11").kind
        'interpreter'
    """
    name = program_name(program).removesuffix(".exe")
    return _RISKS.get(name) or _RISKS.get(name.rstrip("0123456789.-"))
