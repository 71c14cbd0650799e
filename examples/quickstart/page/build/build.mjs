// Builds the libraries of the pages into a folder: ../lib, or that of the first
// argument. The result depends only on package-lock.json and on the files here.
import { build } from "esbuild";
import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const here = import.meta.dirname;
const target = process.argv[2] ?? join(here, "..", "lib");
await rm(target, { recursive: true, force: true });

// Every browser that can show the pages reads woff2.
const onlyWoff2 = {
  name: "only woff2",
  setup: ({ onLoad }) => onLoad({ filter: /katex\.css$/ }, async ({ path }) => ({
    contents: (await readFile(path, "utf8")).replace(/,\s*url\([^)]*\.(woff|ttf)\)\s*format\("\w+"\)/g, ""),
    loader: "css",
  })),
};

function replaced(text, from, to) {
  if (!text.includes(from)) throw new Error(`KaTeX has no ${from}`);
  return text.replaceAll(from, to);
}

// The policy of the pages ignores style attributes: formulas.js sets these widths.
const widthsAsData = {
  name: "widths as data",
  setup: ({ onLoad }) => onLoad({ filter: /katex\.mjs$/ }, async ({ path }) => ({
    contents: replaced(await readFile(path, "utf8"), '"style": "width:" +', '"data-width":'),
  })),
};

const { metafile } = await build({
  absWorkingDir: here,
  entryPoints: ["markdown.mjs", "highlight.mjs", "formulas.mjs", { in: "katex/dist/katex.css", out: "formulas" }]
    .map((entry) => (typeof entry === "string" ? { in: entry, out: entry.replace(".mjs", "") } : entry)),
  outdir: target,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none", // LICENSES.txt has them
  loader: { ".woff2": "file" },
  assetNames: "fonts/[name]",
  plugins: [onlyWoff2, widthsAsData],
  metafile: true,
});

const packages = new Set(Object.keys(metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]).filter(Boolean));
const licences = await Promise.all([...packages].sort().map(async (name) => {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).find((file) => /^licen[cs]e/i.test(file));
  return `${name} ${version}, ${license.replace(/[()]/g, "")}\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`;
}));
const rule = `\n${"-".repeat(72)}\n\n`;
await writeFile(join(target, "LICENSES.txt"), `The files of this folder contain these packages:\n${rule}${licences.join(rule)}`);
