// Builds the page into crates/console/dist, which is committed: `cargo build` never runs Node.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFile, readFile, readdir, writeFile } from "node:fs/promises";

const out = "../crates/console/dist";
await build({
  entryPoints: { app: "src/app.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: out,
});
for (const file of ["index.html", "icon.svg"]) await copyFile(`src/${file}`, `${out}/${file}`);

// What it was built from, so that a test without Node can tell whether the page is stale.
const names = (await readdir("src")).sort();
const files = [...names.map((name) => [name, `src/${name}`]), ["package-lock.json", "package-lock.json"], ["build.mjs", "build.mjs"]];
const hash = createHash("sha256");
for (const [name, path] of files) hash.update(name).update("\0").update(await readFile(path)).update("\0");
await writeFile(`${out}/sources.sha256`, `${hash.digest("hex")}\n`);
