// The current request as a program would send it, in ASCII: no invisible character can change its meaning.

function asciiJson(value, indent) {
  return JSON.stringify(value, null, indent).replace(/[\u007f-\uffff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function python(value) {
  const text = asciiJson(value);
  return {null: "None", true: "True", false: "False"}[text] ?? text;
}

export function asCurl(origin, path, body, key) {
  const quoted = asciiJson(body).replaceAll("'", "'\\''");
  const header = key ? " -H \"Authorization: Bearer $SPLITFUSE_API_KEY\"" : "";
  return `curl -N ${origin}${path}${header} -d '${quoted}'`;
}

export function asPython(origin, body) {
  const {prompt, ...fields} = body;
  const given = Object.entries(fields).filter(([name]) => name !== "stream").map(([name, value]) => `, ${name}=${python(value)}`);
  return `from splitfuse.client import Client\n\nwith Client("${origin}") as client:\n` +
    `    for event in client.stream(${python(prompt)}${given.join("")}):\n        print(event.text, end="", flush=True)`;
}

export function asOpenai(origin, model, body) {
  const {prompt, stream, top_k, min_p, ...fields} = body;
  const given = Object.entries(fields).map(([name, value]) => `\n    ${name}=${python(value)},`).join("");
  const extra = Object.fromEntries(Object.entries({top_k, min_p}).filter(([, value]) => value !== undefined));
  const more = Object.keys(extra).length ? `\n    extra_body=${asciiJson(extra)},` : "";
  return `import openai\n\nclient = openai.OpenAI(base_url="${origin}v1", api_key="any")\n` +
    `for chunk in client.completions.create(\n    model=${python(model)},\n    prompt=${python(prompt)},${given}${more}\n    stream=True,\n):\n` +
    `    print(chunk.choices[0].text, end="", flush=True)`;
}
