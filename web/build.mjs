// Builds the page into crates/console/dist, which is committed: `cargo build` never runs Node.
import { build } from "esbuild";
import { copyFile } from "node:fs/promises";

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
