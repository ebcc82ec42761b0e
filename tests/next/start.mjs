// Starts Pyodide and runs inside.py in it: node start.mjs PYODIDE.mjs REPOSITORY PACKAGES [options for pytest]
import { pathToFileURL } from "node:url";

const [pyodide, repository, packages, ...options] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(pyodide));
const python = await loadPyodide({ env: { HOME: "/home", PYTHONDONTWRITEBYTECODE: "1" } });
for (const [folder, root] of Object.entries({ "/ferrule": repository, "/packages": packages })) {
  python.FS.mkdir(folder);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, folder);
}
python.FS.chdir("/ferrule");
python.globals.set("options", python.toPy(options));
process.exitCode = python.runPython(`
import sys
sys.path[:0] = ["/packages", "/ferrule/src", "/ferrule/tests/next"]
import inside
inside.main(options)
`);
