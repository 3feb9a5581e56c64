// The present view as one HTML file: this page's own files and the run, in one. It needs no server and asks none.

const ENTRY = "main.js";
const IMPORT = /^import \{[^}]*\} from "\.\/([\w.]+)";\n/gm;

export async function savedPage(run, load) {
  const modules = [];
  await gather(ENTRY, modules, load);
  const code = modules.map((text) => text.replace(IMPORT, "").replace(/^export /gm, "")).join("\n");
  const data = JSON.stringify(run.toData()).replaceAll("<", "\\u003c");
  const nonce = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'; img-src data: blob:; ` +
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
  const [page, sheet] = [await load(""), await load("page/page.css")];
  return page
    .replace("<link rel=\"stylesheet\" href=\"page/page.css\">", () =>
      `<meta http-equiv="Content-Security-Policy" content="${policy}">\n<style nonce="${nonce}">\n${sheet}\n</style>`)
    .replace("<script type=\"module\" src=\"page/main.js\"></script>", () =>
      `<script type="application/json" id="saved">${data}</script>\n<script type="module" nonce="${nonce}">\n${code}\n</script>`);
}

// A module behind those that it imports, each once.
async function gather(name, modules, load, seen = new Set()) {
  if (seen.has(name)) return;
  seen.add(name);
  const text = await load(`page/${name}`);
  for (const [, other] of text.matchAll(IMPORT)) await gather(other, modules, load, seen);
  modules.push(text);
}
