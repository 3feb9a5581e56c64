// The current view as one HTML file, with this page's own files and the run. It works without a server.

const ENTRY = "engine.js";
const SHEETS = ["theme.css", "engine.css"];
const IMPORT = /^import \{[^}]*\} from "\.\/([\w.]+)";\n/gm;

export async function savedPage(run, load) {
  const texts = new Map();
  await gather([ENTRY], texts, load);
  const code = [...ordered(ENTRY, texts)].map((name) => texts.get(name).replace(IMPORT, "").replace(/^export /gm, "")).join("\n").replaceAll("</script", "<\\/script");
  const data = JSON.stringify(run.toData()).replaceAll("<", "\\u003c");
  const nonce = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'; img-src data: blob:; ` +
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
  const [page, ...sheets] = await Promise.all([load(""), ...SHEETS.map((name) => load(`page/${name}`))]);
  return page
    .replace(/<img [^>]*>/g, "")
    .replace(/<link rel="icon"[^>]*>/, () => `<meta http-equiv="Content-Security-Policy" content="${policy}">\n<link rel="icon" href="data:,">`)
    .replace(/(<link rel="stylesheet"[^>]*>\s*)+/, () => `<style nonce="${nonce}">\n${sheets.join("\n")}\n</style>\n`)
    .replace(/<script type="module"[^>]*><\/script>/, () =>
      `<script type="application/json" id="saved">${data}</script>\n<script type="module" nonce="${nonce}">\n${code}\n</script>`);
}

async function gather(names, texts, load) {
  const missing = names.filter((name) => !texts.has(name));
  for (const name of missing) texts.set(name, "");
  await Promise.all(missing.map(async (name) => {
    texts.set(name, await load(`page/${name}`));
    await gather(imported(texts.get(name)), texts, load);
  }));
}

function imported(text) {
  return [...text.matchAll(IMPORT)].map(([, name]) => name);
}

// Each module once, after the modules that it imports.
function ordered(name, texts, found = new Set()) {
  for (const other of imported(texts.get(name))) if (!found.has(other)) ordered(other, texts, found);
  return found.add(name);
}
